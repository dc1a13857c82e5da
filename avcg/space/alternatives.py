"""Alternatives to an answer: feasible points that differ from it in one unit of change, and combinations of them.

They are the moves of a search that needs no gradients. A unit is what counts as one change: a column, or a leader with
its followers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from avcg.space.constraints import FeasibleSet
from avcg.space.encoding import Codes, Encoding, Flags, Floats, Positions
from avcg.space.nearest import at_special, missing_numbers
from avcg.space.project import allowed_entries, project

_BEYOND = 1e-5  # standard deviations beyond a cut, which float32 codes can tell apart
_BACK = (1.0, 0.5)  # shares of a number's change that are taken back


@dataclass(frozen=True, eq=False)
class Alternatives:
    """Feasible points, each of which differs from one answer in one unit of change.

    Attributes:
        rows: (M,) position of the answer.
        units: (M,) position of the unit of change, in [0, n_units).
        codes: (M, *event) the points.
        n_units: Number of units of a row.
    """

    rows: Positions
    units: Positions
    codes: Codes
    n_units: int

    def __len__(self) -> int:
        return len(self.rows)


def owners(encoding: Encoding, feasible: FeasibleSet) -> Positions:
    """(D,) the unit of change that each code belongs to."""
    widths = [block.stop - block.start for block in encoding.slices]
    return feasible.unit[np.repeat(np.arange(len(widths)), widths)]


def alternatives(
    encoding: Encoding,
    feasible: FeasibleSet,
    x_cf: Codes,
    x: Codes,
    step: float,
    units: Flags | None = None,
    around: Codes | None = None,
) -> Alternatives:
    """Each answer with one change taken back, wholly or by half, with one number moved, or with another category.

    Args:
        encoding: The codes.
        feasible: What is allowed, for all rows or for each of the B rows.
        x_cf: (B, D) feasible answers.
        x: (B, D) the factuals.
        step: Codes (standard deviations) by which a number is moved, up and down.
        units: (B, features) units that may be changed further; changes of others are only taken back. None: all.
        around: (B, m, D) points for each row. A number that has not changed is only moved toward their mean, and only
            categories that one of them has are entered. None: numbers move both ways, and every category is entered.
    """
    parts = [
        *_taken_back(encoding, feasible, x_cf, x),
        _moved_numbers(encoding, feasible, x_cf, x, np.float32(step), units, around),
        _other_categories(encoding, feasible, x_cf, x, units, around),
    ]
    rows, moved, codes = (np.concatenate([part[i] for part in parts]) for i in range(3))
    allowed = feasible if feasible.rows == 1 else feasible.take(rows)
    codes = project(encoding, allowed, codes[None], x[rows])[0]
    differs = (codes != x_cf[rows]).any(axis=1)
    return Alternatives(rows[differs], moved[differs], codes[differs], len(encoding.schema))


_Part = tuple[Positions, Positions, Codes]


def _taken_back(encoding: Encoding, feasible: FeasibleSet, x_cf: Codes, x: Codes) -> list[_Part]:
    """Each change taken back, and changes of numbers taken back by half."""
    owner = owners(encoding, feasible)
    of_unit = (owner[:, None] == np.arange(len(encoding.schema))).astype(np.float32)
    if feasible.rules is not None:
        of_unit[:, feasible.rules.computed] = 0.0  # computed from what moves, and not moved
    rows, units = np.nonzero((x_cf != x).astype(np.float32) @ of_unit > 0)
    numeric = np.isin(units, encoding.numeric_columns)
    parts = []
    for share in _BACK:
        chosen = numeric if share < 1 else np.ones(len(units), bool)
        row, unit = rows[chosen], units[chosen]
        # A sum would miss the factual by the last digit of a float32, and the change would still count.
        nearer = x[row] if share == 1 else x_cf[row] + np.float32(share) * (x[row] - x_cf[row])
        parts.append((row, unit, np.where(owner == unit[:, None], nearer, x_cf[row])))
    return parts


def _moved_numbers(
    encoding: Encoding,
    feasible: FeasibleSet,
    x_cf: Codes,
    x: Codes,
    step: np.float32,
    units: Flags | None,
    around: Codes | None,
) -> _Part:
    """Each number that leads its unit moved up and down; a missing one or a code becomes a number around the centre."""
    leads = np.flatnonzero(feasible.unit[encoding.numeric_columns] == encoding.numeric_columns)
    wanted = np.ones((len(x), len(leads)), bool) if units is None else units[:, encoding.numeric_columns[leads]]
    rows, which = np.nonzero(wanted & ~feasible.limits.directions.frozen[:, leads])
    rows, number, sign = np.tile(rows, 2), np.tile(leads[which], 2), np.repeat([1.0, -1.0], len(rows))
    # Where there is no number, or a code, it starts from the centre.
    starts = np.where(missing_numbers(encoding, x_cf) | at_special(encoding, x_cf), 0.0, x_cf[:, encoding.number_at])
    if around is not None:
        at = encoding.number_at[number]
        toward = around.mean(axis=1, dtype=np.float64)[rows, at] - starts[rows, number]
        kept = (sign * toward > 0) | (x_cf[rows, at] != x[rows, at])
        rows, number, sign = rows[kept], number[kept], sign[kept]
    codes, each = x_cf[rows], np.arange(len(rows))
    missing = missing_numbers(encoding, x_cf)[rows, number]
    at, flag = encoding.number_at[number], encoding.missing_at[number]
    codes[each, at] = starts[rows, number] + step * sign.astype(np.float32)
    codes[each[missing], flag[missing]] = 0.0
    return rows, encoding.numeric_columns[number], codes


def _other_categories(
    encoding: Encoding, feasible: FeasibleSet, x_cf: Codes, x: Codes, units: Flags | None, around: Codes | None
) -> _Part:
    """Each category that leads its unit replaced by every other one that the row may enter."""
    columns = encoding.categorical_columns
    sizes = [block.stop - block.start for block in encoding.slots]
    column = np.repeat(columns, sizes).astype(np.intp)
    starts = np.repeat(encoding.first_codes, sizes).astype(np.intp)
    widths = np.repeat(sizes, sizes).astype(np.intp)
    leads = feasible.unit[column] == column
    wanted = allowed_entries(encoding, feasible, x) & (x_cf[:, encoding.slot_at] < 0.5)
    wanted &= leads if units is None else leads & units[:, column]
    if around is not None:
        wanted &= (around[:, :, encoding.slot_at] > 0.5).any(axis=1)
    rows, slot = np.nonzero(wanted)
    codes, each = x_cf[rows], np.arange(len(rows))[:, None]
    at = np.arange(int(widths.max(initial=0)))
    # Positions past the end of a shorter block repeat its last code.
    block = starts[slot][:, None] + np.minimum(at, widths[slot][:, None] - 1)
    codes[each, block] = 0.0
    codes[each[:, 0], encoding.slot_at[slot]] = 1.0
    return rows, column[slot], codes


def combine(
    encoding: Encoding, feasible: FeasibleSet, x_cf: Codes, x: Codes, moves: Alternatives, chosen: Positions
) -> Codes:
    """Answers with several units replaced at once, made feasible.

    Args:
        encoding: The codes.
        feasible: What is allowed.
        x_cf: (B, D) feasible answers.
        x: (B, D) the factuals.
        moves: Their alternatives.
        chosen: (K, B, features) position of the alternative that each unit is taken from; -1: the unit stays.

    Returns:
        (K, B, D).
    """
    taken = chosen[..., owners(encoding, feasible)]
    combined = np.where(taken >= 0, moves.codes[np.maximum(taken, 0), np.arange(encoding.width)], x_cf)
    return project(encoding, feasible, combined, x)


def nearer(encoding: Encoding, feasible: FeasibleSet, x_cf: Codes, x: Codes, shares: Sequence[float]) -> Codes:
    """(K, B, D) answers with the same changes, but every number a share of its way back.

    Args:
        encoding: The codes.
        feasible: What is allowed.
        x_cf: (B, D) feasible answers.
        x: (B, D) the factuals.
        shares: K shares in [0, 1].
    """
    result, at = np.tile(x_cf, (len(shares), 1, 1)), encoding.number_at
    back = np.array(shares, np.float32)[:, None, None]
    present = ~(missing_numbers(encoding, x) | missing_numbers(encoding, x_cf) | at_special(encoding, x))
    result[..., at] += np.where(present, back * (x[:, at] - x_cf[:, at]), np.float32(0.0))
    return project(encoding, feasible, result, x)


def at_cuts(encoding: Encoding, feasible: FeasibleSet, x_cf: Codes, x: Codes, cuts: Mapping[str, Floats]) -> Codes:
    """(B, D) answers with every number moved back to the last cut that it has passed.

    Models that compare numbers with these cuts alone cannot tell it from the answer.

    Args:
        encoding: The codes.
        feasible: What is allowed.
        x_cf: (B, D) feasible answers.
        x: (B, D) the factuals.
        cuts: Ascending numbers by column, in its own units; a number is either below a cut, or at or above it.
    """
    result, present = x_cf.copy(), ~(missing_numbers(encoding, x) | missing_numbers(encoding, x_cf))
    present &= ~at_special(encoding, x)
    for j, feature in enumerate(encoding.numeric):
        column = cuts.get(feature.name, np.zeros(0))
        moved = np.flatnonzero(present[:, j] & (x_cf[:, encoding.number_at[j]] != x[:, encoding.number_at[j]]))
        if not len(column) or not len(moved):
            continue
        own, now = (encoding.unscaled(codes[moved][:, encoding.number_at])[:, j] for codes in (x, x_cf))
        rose = now > own
        last = np.where(rose, np.searchsorted(column, now, "right") - 1, np.searchsorted(column, now, "right"))
        edge = column[np.clip(last, 0, len(column) - 1)]
        passed = (last >= 0) & (last < len(column)) & np.where(rose, edge > own, edge <= own)
        beyond = edge + np.where(rose, 1.0, -1.0) * _BEYOND * encoding.scale[j]
        if feature.step:
            beyond = np.where(rose, np.ceil(edge / feature.step), np.ceil(edge / feature.step) - 1) * feature.step
        number = np.where(passed, beyond, own)
        kept = np.where(rose, np.minimum(number, now), np.maximum(number, now))
        scaled = (kept - encoding.center[j]) / encoding.scale[j]
        result[moved, encoding.number_at[j]] = np.where(passed, scaled, x[moved, encoding.number_at[j]])
    return project(encoding, feasible, result[None], x)[0]
