"""P(θ): distributions over plausible predictors, and how to evaluate a draw all at once."""
