"""Methods to compare with: their mathematics only; the rest is the explainer they share."""
