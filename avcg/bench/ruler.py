"""The ruler: the provably nearest answer under the same constraints, models and margins, to measure answers by.

`nearest_linear` solves a mixed-integer program for each row (HiGHS, by way of scipy). `over_optimum` divides the
distances of a method's answers by those of the ruler, which says how far they are from the best possible. A protocol
whose models are linear measures it by ``metrics = ["avcg.bench.ruler:OVER_OPTIMUM"]``.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import partial
from typing import Any

import numpy as np
import torch
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp
from torch import Tensor

from avcg.errors import SettingError
from avcg.hypotheses.linear import linear_logits
from avcg.hypotheses.predictors import Joined
from avcg.metrics.context import Case, there
from avcg.metrics.table import Metric
from avcg.space.codes import TableCodes
from avcg.space.encoding import Codes, Floats, Positions
from avcg.space.project import charges, missing_numbers
from avcg.space.reach import each_value, grid_values, number_ends, unit_columns

_INFEASIBLE = 2  # status of scipy's milp
_SECONDS = 10.0  # for a row in a protocol
_MOST_VALUES = 1000  # of a number that other columns follow


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
        program = _feasible_set(part, x[one])
        _accept(program, x[row], int(target[row]), models, margins[:, row], share, deployed)
        result = program.solve(seconds)
        if result.x is not None:
            codes = (x[row] + program.codes(result.x)).astype(np.float32)
            answers[row] = part.project(codes[None, None], x[one])[0, 0]
            distance[row] = part.distance(answers[one], x[one])[0]
            bound[row] = min(result.mip_dual_bound, distance[row])
        elif result.status == _INFEASIBLE:
            distance[row] = bound[row] = np.inf
    return Nearest(answers, distance, bound)


@dataclass(eq=False)
class _Program:
    """A mixed-integer program in the making.

    Attributes:
        width: D, the number of codes.
        cost: Cost of a unit of each variable.
        ends: Lowest and highest value of each variable.
        whole: 1 for variables that take whole numbers, else 0.
        switch: For each variable, the position of the binary one without which it is 0.
        effects: For each variable, the codes that a unit of it adds to, and how much.
        rows: Conditions: coefficients by variable, lowest and highest value of their sum.
        counts: Variables that count as a change each.
    """

    width: int
    cost: list[float] = field(default_factory=list)
    ends: list[tuple[float, float]] = field(default_factory=list)
    whole: list[int] = field(default_factory=list)
    switch: list[int] = field(default_factory=list)
    effects: list[tuple[Any, Any]] = field(default_factory=list)
    rows: list[tuple[dict[int, float], float, float]] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)

    def binary(self, cost: float = 0.0, effect: tuple[Any, Any] = ((), ())) -> int:
        """Add a variable that is 0 or 1; its position."""
        return self.variable(cost, (0.0, 1.0), effect, len(self.cost), 1)

    def variable(
        self, cost: float, ends: tuple[float, float], effect: tuple[Any, Any], switch: int, whole: int = 0
    ) -> int:
        """Add a variable; its position."""
        self.cost.append(float(cost))
        self.ends.append((min(ends[0], 0.0), max(ends[1], 0.0)))
        self.effects.append(effect)
        self.switch.append(switch)
        self.whole.append(whole)
        return len(self.cost) - 1

    def switched(self, cost: float, ends: tuple[float, float], effect: tuple[Any, Any], switch: int) -> int:
        """Add a variable that is between its ends where a binary one is 1, and 0 where that is 0; its position."""
        position = self.variable(cost, ends, effect, switch)
        self.rows.append(({position: 1.0, switch: -ends[0]}, 0.0, np.inf))
        self.rows.append(({position: 1.0, switch: -ends[1]}, -np.inf, 0.0))
        return position

    def effect(self) -> Floats:
        """(D, V) how much a unit of each variable adds to each code."""
        table = np.zeros((self.width, len(self.effects)))
        for j, (at, added) in enumerate(self.effects):
            table[at, j] = added
        return table

    def codes(self, values: Floats) -> Floats:
        """(D,) what values of the variables add to the codes, without the traces of switches that are off."""
        rounded = np.where(self.whole, np.rint(values), values)
        return np.asarray(self.effect() @ np.where(rounded[self.switch] > 0, rounded, 0.0))

    def solve(self, seconds: float) -> OptimizeResult:
        """The cheapest values of the variables."""
        if not self.cost:
            self.binary()
        matrix = np.zeros((len(self.rows), len(self.cost)))
        for i, (terms, _, _) in enumerate(self.rows):
            matrix[i, list(terms)] = list(terms.values())
        low, high = (np.array([row[side] for row in self.rows]) for side in (1, 2))
        return milp(
            np.array(self.cost), integrality=np.array(self.whole), bounds=Bounds(*np.array(self.ends).T),
            constraints=LinearConstraint(matrix, low, high), options={"time_limit": seconds, "mip_rel_gap": 1e-7},
        )  # fmt: skip


def _feasible_set(space: TableCodes, x: Codes) -> _Program:
    """The program of one row (1, D): what it may change, and what that costs."""
    encoding, feasible = space.encoding, space.feasible
    program = _Program(encoding.width)
    low, high = (ends[0] for ends in number_ends(encoding, feasible, x))
    first, count, _ = grid_values(encoding, feasible, x)
    leading = [encoding.kind_index[link.leader] for link in feasible.links if link.knots is not None]
    count[:, np.setdiff1d(np.arange(len(low)), leading)] = 0.0
    for j in leading:
        if count[0, j] > _MOST_VALUES:
            raise SettingError(
                f"The ruler tries each value of a number that other columns follow. Column {encoding.numeric[j].name!r}"
                f" has more than {_MOST_VALUES}: give it a step, or freeze it for this query."
            )
    values = each_value(encoding, feasible, x, first, count)[:, 0]
    costs = charges(encoding, values, x[0]).astype(np.float64)
    for leader, columns in unit_columns(encoding, feasible).items():
        j = encoding.kind_index[leader]
        if leader not in encoding.numeric_columns or j in leading:
            _add_values(program, x[0, columns], values[:, columns], costs[:, columns].sum(axis=1), columns)
        elif not np.isnan(low[j]) and not _stays(space, x, j, low[j], high[j]):
            _add_number(program, space, x, j, low[j], high[j])
    if feasible.max_changes is not None:
        program.rows.append((dict.fromkeys(program.counts, 1.0), 0.0, float(feasible.max_changes[0])))
    return program


def _stays(space: TableCodes, x: Codes, j: int, low: float, high: float) -> bool:
    current = space.encoding.unscaled(x[:, space.encoding.number_at])[0, j]
    return bool(low == high == current and not missing_numbers(space.encoding, x)[0, j])


def _add_values(program: _Program, own: Codes, values: Codes, costs: Floats, columns: Positions) -> None:
    """Add a binary variable for every other value that a column may take, with its followers."""
    options = [
        program.binary(cost, (columns, value.astype(np.float64) - own))
        for value, cost in zip(values, costs, strict=True)
        if (value != own).any()
    ]
    if options:
        program.rows.append((dict.fromkeys(options, 1.0), 0.0, 1.0))
        program.counts += options


def _add_number(program: _Program, space: TableCodes, x: Codes, j: int, low: float, high: float) -> None:
    """Add whether a number moves, and how far: on its grid, with its price a unit and its price a change."""
    encoding = space.encoding
    at, gap, scale = int(encoding.number_at[j]), int(encoding.missing_at[j]), float(encoding.scale[j])
    own, missing = float(x[0, at]), bool(missing_numbers(encoding, x)[0, j])
    ends = ((low - encoding.center[j]) / scale - own, (high - encoding.center[j]) / scale - own)
    change, unit = float(encoding.change_prices[j]), float(encoding.prices[at])
    moves = program.binary(
        change + (float(encoding.prices[gap]) if missing else 0.0), ([gap], -1.0) if missing else ((), ())
    )
    program.counts.append(moves)
    if missing:  # whatever number fills it costs the same
        parts = {program.switched(0.0, ends, ([at], 1.0), moves): 1.0}
    else:
        moves = program.binary(change)
        up = program.switched(unit, (0.0, max(ends[1], 0.0)), ([at], 1.0), moves)
        down = program.switched(unit, (0.0, max(-ends[0], 0.0)), ([at], -1.0), moves)
        parts = {up: 1.0, down: -1.0}
    program.counts.append(moves)
    if encoding.steps[j] > 0:
        steps = float(np.rint((high - low) / encoding.steps[j]))
        count = program.variable(0.0, (0.0, steps), ((), ()), moves, 1)
        program.rows.append(({count: 1.0, moves: -steps}, -np.inf, 0.0))
        program.rows.append((parts | {count: -float(encoding.steps[j]) / scale, moves: -ends[0]}, 0.0, 0.0))


def _accept(
    program: _Program, x: Codes, target: int, models: LinearModels, margins: Floats, share: float, deployed: int
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
    models: LinearModels,
    *,
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
        models: The models that judge.
        lowest: Whether the nearest point must only reach the lowest log-odds of the answer under all models, which is
            as good in the worst case; otherwise it must be as good as the answer under every model.
        tolerance: Log-odds that are taken for rounding.
        seconds: Time limit for a row. Where it runs out, the distance is divided by what is proven so far, and the
            ratio may be too large.

    Returns:
        (B,) ratios; NaN for rows that are unchanged.
    """
    reached = models.log_odds(answers, target)
    if lowest:
        reached = np.broadcast_to(reached.min(axis=0), reached.shape)
    nearest = nearest_linear(space, x, target, models, margin=reached - tolerance, seconds=seconds)
    distance = space.distance(answers, x).astype(np.float64)
    changed = (answers != x).any(axis=1) & (nearest.bound > 0)
    return np.where(changed, np.maximum(distance / np.where(changed, nearest.bound, 1.0), 1.0), np.nan)


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
