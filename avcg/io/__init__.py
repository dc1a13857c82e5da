"""Fitted explainers as folders that outlive a process: weights, JSON, no code.

``folder`` writes and reads whole folders or nothing, ``tensors`` and ``spaces`` need numpy alone, ``networks``,
``boxes`` and ``packing`` turn hypotheses into tensors and back, ``artifact`` puts all of it together, and ``graphs``
exports to ONNX.
"""
