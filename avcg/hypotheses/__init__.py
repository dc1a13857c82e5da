"""Hypothesis distributions P(θ) over plausible predictors, and the joint evaluation of the hypotheses drawn."""
