"""How sure an answer is: the paper's bounds, and the certificate from held-out models."""

from avcg.guarantees.bounds import (
    cantelli,
    chebyshev,
    clopper_pearson,
    markov,
    stability_bound,
    stability_bound_of_subset,
)
from avcg.guarantees.certificate import Certificate, certify

__all__ = [
    "Certificate",
    "cantelli",
    "certify",
    "chebyshev",
    "clopper_pearson",
    "markov",
    "stability_bound",
    "stability_bound_of_subset",
]
