"""The ruler: the provably nearest answer under the same constraints, models and margins, to measure answers by.

`nearest_linear` solves a mixed-integer program for each row (HiGHS, by way of scipy). `over_optimum` divides the
distances of a method's answers by those of the ruler, which says how far they are from the best possible. A protocol
whose models are linear measures it by ``metrics = ["avcg.bench.ruler:OVER_OPTIMUM"]``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from torch import Tensor

from avcg.bench.program import INFEASIBLE, Program, feasible_program
from avcg.hypotheses.linear import linear_logits
from avcg.hypotheses.predictors import Joined
from avcg.metrics.context import Case, there
from avcg.metrics.table import Metric
from avcg.space.codes import TableCodes
from avcg.space.encoding import Codes, Floats, Positions

_SECONDS = 10.0  # for a row in a protocol


@dataclass(frozen=True, eq=False)
class Nearest:
    """The nearest accepted points, B rows.

    Attributes:
        answers: (B, D) codes of the nearest accepted point; the factual where none was found.
        distance: (B,) its distance; infinite where it is proven that there is none, NaN where time ran out before one
            was found.
        bound: (B,) distance that is proven to be too short or just enough; infinite where there is no accepted point.
    """

    answers: Codes
    distance: Floats
    bound: Floats


@dataclass(frozen=True, eq=False)
class LinearModels:
    """S models whose logits are linear in the codes; `avcg.hypotheses.linear.linear_logits` reads them.

    Attributes:
        weights: (S, C, D) weights.
        biases: (S, C) biases.
    """

    weights: Floats
    biases: Floats

    def log_odds(self, x: Codes, target: Positions) -> Floats:
        """(S, N) logit of the target less the largest other logit, of (N, D) codes; with two classes the log-odds."""
        logits = np.einsum("scd,nd->snc", self.weights, x.astype(np.float64)) + self.biases[:, None]
        rows = np.arange(len(x))
        own = logits[:, rows, target]
        logits[:, rows, target] = -np.inf
        return np.asarray(own - logits.max(axis=-1))


def nearest_linear(
    space: TableCodes,
    x: Codes,
    target: Positions,
    models: LinearModels,
    *,
    margin: float | Floats = 0.0,
    share: float = 1.0,
    deployed: int = 1,
    seconds: float = 60.0,
) -> Nearest:
    """The nearest feasible points that linear models accept by a margin, exactly.

    A model accepts a point if the logit of the target is at least a margin above every other logit. All conditions
    have a tolerance of 1e-6, that of the solver, so a distance is at most too short.

    Args:
        space: What each row may change, and what it costs.
        x: (B, D) the factuals.
        target: (B,) positions of the target classes.
        models: S models, the deployed ones first.
        margin: Log-odds that each model must reach; one number, or an array that broadcasts to (S, B).
        share: Share of the models other than the deployed ones that must reach their margin.
        deployed: Number of the first models that must reach theirs in any case.
        seconds: Time limit for a row; where it runs out, ``bound`` is below ``distance``.

    Raises:
        SettingError: If a number that other columns follow may take too many values to try each.
    """
    margins = np.broadcast_to(np.asarray(margin, np.float64), (len(models.biases), len(x)))
    answers, distance, bound = x.copy(), np.full(len(x), np.nan), np.zeros(len(x))
    for row in range(len(x)):
        one = np.array([row])
        part = space.take(one)
        program = feasible_program(part, x[one])
        _accept(program, x[row], int(target[row]), models, margins[:, row], share, deployed)
        result = program.solve(seconds)
        if result.x is not None:
            codes = (x[row] + program.codes(result.x)).astype(np.float32)
            answers[row] = part.project(codes[None, None], x[one])[0, 0]
            distance[row] = part.distance(answers[one], x[one])[0]
            bound[row] = min(result.mip_dual_bound, distance[row])
        elif result.status == INFEASIBLE:
            distance[row] = bound[row] = np.inf
    return Nearest(answers, distance, bound)


def _accept(
    program: Program, x: Codes, target: int, models: LinearModels, margins: Floats, share: float, deployed: int
) -> None:
    """Add that the deployed models, and a share of the others, reach their margins."""
    effect, ends = program.effect(), np.array(program.ends).reshape(-1, 2)
    others = [label for label in range(models.biases.shape[1]) if label != target]
    accepting = []
    for s, (weights, biases) in enumerate(zip(models.weights, models.biases, strict=True)):
        optional = s >= deployed and share < 1.0
        if optional:
            accepting.append(program.binary())
        for other in others:
            slope = weights[target] - weights[other]
            needed = margins[s] - (slope @ x + biases[target] - biases[other])
            gains = slope @ effect
            terms = {int(j): float(gains[j]) for j in np.flatnonzero(gains)}
            if optional:
                lowest = np.minimum(gains * ends[:, 0], gains * ends[:, 1]).sum()
                terms[accepting[-1]] = -max(needed - lowest, 0.0)
                needed = min(lowest, needed)
            program.rows.append((terms, needed, np.inf))
    if accepting:
        enough = np.ceil(share * len(accepting) - 1e-9)
        program.rows.append((dict.fromkeys(accepting, 1.0), float(enough), np.inf))


def over_optimum(
    space: TableCodes,
    x: Codes,
    target: Positions,
    answers: Codes,
    models: Any,
    *,
    nearest: Callable[..., Nearest] = nearest_linear,
    lowest: bool = False,
    tolerance: float = 1e-5,
    seconds: float = 60.0,
) -> Floats:
    """Distances of answers over that of the nearest point that is as robust.

    The margins of the ruler are those that the answer itself reaches, so that an answer is never blamed for the
    robustness that it gives, whatever its method takes for acceptance, and no ratio is below 1.

    Args:
        space: What each row may change, and what it costs.
        x: (B, D) the factuals.
        target: (B,) positions of the target classes.
        answers: (B, D) codes of feasible answers.
        models: The models that judge: `LinearModels`, or what else ``nearest`` takes, with ``log_odds``.
        nearest: The ruler for these models, `nearest_linear` or `avcg.bench.tree_ruler.nearest_in_trees`.
        lowest: Whether the nearest point must only reach the lowest log-odds of the answer under all models, which is
            as good in the worst case; otherwise it must be as good as the answer under every model.
        tolerance: Log-odds that are taken for rounding.
        seconds: Time limit for a row. Where it runs out, the distance is divided by what is proven so far, and the
            ratio may be too large.

    Returns:
        (B,) ratios; NaN for rows that are unchanged, or as robust without any change.
    """
    reached = models.log_odds(answers, target)
    if lowest:
        reached = np.broadcast_to(reached.min(axis=0), reached.shape)
    bound = nearest(space, x, target, models, margin=reached - tolerance, seconds=seconds).bound
    distance = space.distance(answers, x).astype(np.float64)
    changed = (answers != x).any(axis=1) & (bound > 0)
    return np.where(changed, np.maximum(distance / np.where(changed, bound, 1.0), 1.0), np.nan)


def _measured(case: Case, *, lowest: bool) -> Tensor | float:
    """(B,) the ratios of a case, judged by the deployed model and the hypotheses that the method was trained on."""
    context, answers = case.context, case.answers
    judges = linear_logits(Joined([context.deployed.predictors, there(answers.trained_on)]))
    space = context.space.codes
    if judges is None or not isinstance(space, TableCodes):
        return np.nan
    ratios = over_optimum(
        space, answers.x.numpy(), answers.target.numpy(), answers.x_cf.numpy(), LinearModels(*judges),
        lowest=lowest, seconds=_SECONDS,
    )  # fmt: skip
    return torch.from_numpy(ratios)


# Metrics for protocols whose models are linear; NaN for other models.
OVER_OPTIMUM = Metric(
    "over_optimum", "lower", function=partial(_measured, lowest=False), needs=("trained_on",), answered_only=True
)
OVER_OPTIMUM_LOWEST = Metric(
    "over_optimum_lowest", "lower", function=partial(_measured, lowest=True), needs=("trained_on",), answered_only=True
)
