"""Guarantees about the validity of answers: the bounds of the paper, and certificates from held-out hypotheses."""

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
