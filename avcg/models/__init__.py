"""Classifiers, adapters from other libraries' models to networks or black boxes, and the decision rule."""
