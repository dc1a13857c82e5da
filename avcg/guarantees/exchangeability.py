"""Whether new models are like the calibration models: conformal p-values, and evidence that grows over a sequence.

The promise is about models that are exchangeable with the calibration models. Ranks of exchangeable scores are uniform,
so that a rank tells of one model, and a bet on low ranks of many (a test martingale; Vovk, Gammerman and Shafer,
Algorithmic Learning in a Random World).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from avcg.guarantees.bounds import Floats

# Powers of the bets, of which the mean is taken: small ones for ranks that are the lowest, large ones for a drift.
_POWERS = np.linspace(0.05, 0.95, 19)


def p_value(reference: Floats, score: float) -> float:
    """The conformal p-value of a score that is suspicious if it is low: exact for any number of reference scores.

    Args:
        reference: (m,) scores of the calibration models.
        score: Score of the new model.

    >>> p_value(np.array([0.9, 0.95, 0.97]), 0.93), p_value(np.array([0.9, 0.95, 0.97]), 0.5)
    (0.5, 0.25)
    """
    return float((1 + (reference <= score).sum()) / (len(reference) + 1))


def online_p_values(reference: Floats, scores: Floats, rng: np.random.Generator) -> Floats:
    """(K,) p-values of scores that arrive one after the other, each compared with all before it.

    Ties are broken at random. If all scores are exchangeable, the p-values are independent and uniform on (0, 1).

    Args:
        reference: (m,) scores of the calibration models.
        scores: (K,) scores of the new models, in their order.
        rng: Random numbers.
    """
    seen, values = np.asarray(reference, np.float64), []
    for score in scores:
        lower, equal = (seen < score).sum(), (seen == score).sum() + 1
        values.append((lower + (1.0 - rng.random()) * equal) / (len(seen) + 1))
        seen = np.append(seen, score)
    return np.array(values, np.float64)


def evidence(p_values: NDArray[np.float64]) -> Floats:
    """(K,) evidence after each p-value that they are not uniform but low: the capital of a bet that starts with 1.

    If they are independent and uniform, the chance that it ever reaches c is at most 1 / c (Ville's inequality),
    whenever one looks and stops.

    Args:
        p_values: (K,) values in (0, 1].

    >>> bool(evidence(np.array([0.02, 0.02, 0.02]))[-1] > 20), bool(evidence(np.array([0.5, 0.7, 0.6]))[-1] < 1)
    (True, True)
    """
    logs = np.log(_POWERS) + (_POWERS - 1.0) * np.log(np.asarray(p_values, np.float64))[:, None]
    return np.asarray(np.exp(np.cumsum(logs, axis=0)).mean(axis=1))
