"""Mixed-integer programs of what a row may become: their variables, conditions and solution (HiGHS, through scipy)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, OptimizeResult, milp

from avcg.errors import SettingError
from avcg.space.codes import TableCodes
from avcg.space.encoding import Codes, Floats, Positions
from avcg.space.nearest import missing_numbers
from avcg.space.project import charges
from avcg.space.reach import each_value, grid_values, number_ends, unit_columns

INFEASIBLE = 2  # status of a program without a solution
_MOST_VALUES = 1000  # of a number that other columns follow


@dataclass(eq=False)
class Program:
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


def feasible_program(space: TableCodes, x: Codes) -> Program:
    """The program of one row (1, D): what it may change, and what that costs.

    Raises:
        SettingError: If there are rules between columns, which the program does not know.
    """
    encoding, feasible = space.encoding, space.feasible
    if feasible.rules is not None:
        raise SettingError(
            "The nearest answer is proven for schemas without rules between columns. Leave out require, derive and"
            " when."
        )
    program = Program(encoding.width)
    low, high = (ends[0] for ends in number_ends(encoding, feasible, x))
    values, listed = listed_values(space, x)
    costs = charges(encoding, values, x[0]).astype(np.float64)
    for leader, columns in unit_columns(encoding, feasible).items():
        j = encoding.kind_index[leader]
        if leader in listed:
            add_values(program, x[0, columns], values[:, columns], costs[:, columns].sum(axis=1), columns)
        elif not np.isnan(low[j]) and not _stays(space, x, j, low[j], high[j]):
            _add_number(program, space, x, j, low[j], high[j])
    if feasible.max_changes is not None:
        program.rows.append((dict.fromkeys(program.counts, 1.0), 0.0, float(feasible.max_changes[0])))
    return program


def listed_values(space: TableCodes, x: Codes) -> tuple[Codes, set[int]]:
    """The values that units of change take one at a time: categories, and numbers that other columns follow.

    Args:
        space: What the row may change.
        x: (1, D) the factual.

    Returns:
        (K, D) the row with the k-th value of all these units at once, the factual's own where there are fewer; and the
        positions in the schema of their leaders.

    Raises:
        SettingError: If a number that other columns follow may take too many values.
    """
    encoding, feasible = space.encoding, space.feasible
    first, count, _ = grid_values(encoding, feasible, x)
    leading = [link.leader for link in feasible.links if link.knots is not None]
    numbers = [encoding.kind_index[leader] for leader in leading]
    count[:, np.setdiff1d(np.arange(count.shape[1]), numbers)] = 0.0
    for j in numbers:
        if count[0, j] > _MOST_VALUES:
            raise SettingError(
                f"The ruler tries each value of a number that other columns follow. Column {encoding.numeric[j].name!r}"
                f" has more than {_MOST_VALUES}: give it a step, or freeze it for this query."
            )
    return each_value(encoding, feasible, x, first, count)[:, 0], {*leading, *encoding.categorical_columns.tolist()}


def _stays(space: TableCodes, x: Codes, j: int, low: float, high: float) -> bool:
    current = space.encoding.unscaled(x[:, space.encoding.number_at])[0, j]
    return bool(low == high == current and not missing_numbers(space.encoding, x)[0, j])


def add_values(program: Program, own: Codes, values: Codes, costs: Floats, columns: Positions) -> list[int]:
    """Add a binary variable for every other value that a unit of change may take; their positions.

    Args:
        program: The program.
        own: (W,) codes of the unit in the factual.
        values: (K, W) its codes for each value; those that are the factual's own are left out.
        costs: (K,) what each value costs.
        columns: (W,) where these codes are in a row.
    """
    options = [
        program.binary(cost, (columns, value.astype(np.float64) - own))
        for value, cost in zip(values, costs, strict=True)
        if (value != own).any()
    ]
    if options:
        program.rows.append((dict.fromkeys(options, 1.0), 0.0, 1.0))
        program.counts += options
    return options


def _add_number(program: Program, space: TableCodes, x: Codes, j: int, low: float, high: float) -> None:
    """Add whether a number moves, and how far: on its grid, with its price a unit and its price a change."""
    encoding = space.encoding
    at, gap, scale = int(encoding.number_at[j]), int(encoding.missing_at[j]), float(encoding.scale[j])
    own, missing = float(x[0, at]), bool(missing_numbers(encoding, x)[0, j])
    ends = ((low - encoding.center[j]) / scale - own, (high - encoding.center[j]) / scale - own)
    change, unit = float(encoding.change_prices[j]), float(encoding.prices[at])
    if missing:  # whatever number fills it costs the same
        moves = program.binary(change + float(encoding.prices[gap]), ([gap], -1.0))
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
