"""Predictors: networks and how they are fitted."""
