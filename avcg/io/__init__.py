"""Fitted explainers stored in folders of weights and JSON, without code.

``folder`` writes and reads folders and ``tensors`` the arrays in them. ``spaces``, ``hypotheses``, ``networks`` and
``black_boxes`` turn parts of an explainer into plain values and arrays, and back; ``artifact`` puts them together.
``onnx`` exports graphs, and ``scorer`` answers from them without torch.
"""
