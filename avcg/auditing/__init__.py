"""Old advice under new models: audits."""
