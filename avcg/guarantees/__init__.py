"""How sure an answer is: the paper's bounds and the certificate from held-out models."""
