"""What people call: explainers, and the counterfactuals they return."""
