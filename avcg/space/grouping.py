"""What columns of a frame are beside single features: dummies of one category, and columns that only name a row.

Every function returns what was found as tuples (columns, what was found, why), in the order of the frame.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any, Literal

import narwhals.stable.v2 as nw
import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.schema.features import SEPARATORS, Categorical, category_names, common_prefix
from avcg.space.encoding import Flags

Found = Literal["dummies", "thermometer", "dropped category", "identifier", "date", "free text"]
Finding = tuple[tuple[str, ...], Found, str]

# A text column with more different values than this names things (people, addresses) rather than sorting them.
MOST_CATEGORIES = 256
_FEWEST_TEXTS = 20  # rows from which on texts that are all different name rows, whatever the column is called
_FEWEST_BY_PREFIX, _FEWEST = 2, 3  # columns of a group, with names that have a prefix in common and without
_NUMBERED = re.compile(r"(.*?\D)(\d+(?:\.\d+)?)")
_ISO_DATE = re.compile(r"\d{4}-\d\d-\d\d([T ]\d\d:\d\d(:\d\d(\.\d{1,6})?)?(Z|[+-]\d\d:?\d\d)?)?")
_WORDS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|\d+")
_NAMES_AT_THE_END = frozenset({"id", "ids", "number", "no", "nr", "key", "uuid", "guid", "ref", "reference"})
_NAMES_AT_THE_START = frozenset({"id", "uuid", "guid"})


def find_groups(frame: nw.DataFrame[Any], apart: Collection[str] = ()) -> list[Finding]:
    """Groups of columns of 0 and 1 that hold one category, and groups of which one column seems to be dropped.

    Args:
        frame: Rows.
        apart: Columns that are features of their own.
    """
    binary = {
        name: flags for name in frame.columns if name not in apart and (flags := _binary(frame[name])) is not None
    }
    found = _by_prefix(binary)
    found += _thermometers(_without(binary, found))
    found += _side_by_side(_without(binary, found), frame.columns)
    order = {name: i for i, name in enumerate(frame.columns)}
    return sorted(found, key=lambda finding: order[finding[0][0]])


def find_kept(frame: nw.DataFrame[Any], apart: Collection[str] = ()) -> list[Finding]:
    """Columns that are no features: dates, identifiers and free texts.

    Args:
        frame: Rows.
        apart: Columns that are features of their own.
    """
    findings = ((name, _why_kept(frame[name])) for name in frame.columns if name not in apart)
    return [((name,), *found) for name, found in findings if found is not None]


def grouped_feature(columns: tuple[str, ...], found: Found, taken: Collection[str]) -> Categorical:
    """The feature that a group of columns holds.

    Args:
        columns: The columns, in the order of the categories.
        found: ``"dummies"`` or ``"thermometer"``.
        taken: Names that the feature cannot have.
    """
    if found == "thermometer":
        prefix, levels = _NUMBERED.fullmatch(columns[0]), tuple(range(len(columns) + 1))
        name = "" if prefix is None else prefix[1].rstrip(SEPARATORS + "<>≤≥")
        return Categorical(_free_name(name, columns, taken), levels, ordered=True, columns=columns)
    name = common_prefix(columns).rstrip(SEPARATORS)
    return Categorical(_free_name(name, columns, taken), category_names(columns), columns=columns)


def _free_name(name: str, columns: tuple[str, ...], taken: Collection[str]) -> str:
    if name and name not in taken:
        return name
    joined = " / ".join(columns if len(columns) <= _FEWEST else (*columns[:2], f"{len(columns) - 2} more"))
    return joined if joined not in taken else " / ".join(columns)


def _without(binary: Mapping[str, Flags], found: Iterable[Finding]) -> dict[str, Flags]:
    taken = {name for columns, what, _ in found for name in columns if what != "dropped category"}
    return {name: flags for name, flags in binary.items() if name not in taken}


def _binary(series: nw.Series[Any]) -> Flags | None:
    """A column of nothing but 0 and 1, false and true; None for any other."""
    dtype, native = series.dtype, series.to_native()
    if dtype == nw.Object:
        cells = native.tolist()
        if not all(isinstance(cell, (bool, int, float, np.generic)) and cell in (0, 1) for cell in cells):
            return None
        return np.array(cells, np.float64) == 1
    if not (dtype == nw.Boolean or dtype.is_numeric()) or dtype.is_decimal() or series.null_count():
        return None
    values: NDArray[Any] = series.to_numpy()
    return values == 1 if bool(((values == 0) | (values == 1)).all()) else None


def _by_prefix(binary: Mapping[str, Flags]) -> list[Finding]:
    """Dummies whose names have a prefix in common, and groups of them that lack one."""
    by_prefix: dict[str, list[str]] = {}
    for name in binary:
        for i in range(1, len(name)):
            if name[i - 1] in SEPARATORS and name[i] not in SEPARATORS:
                by_prefix.setdefault(name[:i], []).append(name)
    found: list[Finding] = []
    dropped: list[Finding] = []
    taken: set[str] = set()
    for prefix in sorted(by_prefix, key=len):
        names = tuple(name for name in by_prefix[prefix] if name not in taken)
        if len(names) < _FEWEST_BY_PREFIX or not all(binary[name].any() for name in names):
            continue
        n_set = np.sum([binary[name] for name in names], axis=0)
        if (n_set == 1).all():
            found.append((names, "dummies", f"exactly one of these {len(names)} columns is set in every row"))
            taken.update(names)
        elif (n_set <= 1).all():
            why = (
                f"at most one of these {len(names)} columns is set in every row, and none in {int((n_set == 0).sum())}:"
                " they may be dummies of which one was dropped. They are read as features of their own, and an answer"
                " may set several. Make the dummies with drop_first=False."
            )
            dropped.append((names, "dropped category", why))
    return found + [finding for finding in dropped if not taken & set(finding[0])]


def _thermometers(binary: Mapping[str, Flags]) -> list[Finding]:
    """Columns with numbered names of which each set one implies the one before, and every level occurs."""
    numbered: dict[str, list[tuple[float, str]]] = {}
    for name in binary:
        if match := _NUMBERED.fullmatch(name):
            numbered.setdefault(match[1], []).append((float(match[2]), name))
    found: list[Finding] = []
    for entries in numbered.values():
        names = tuple(name for _, name in sorted(entries))
        flags = [binary[name] for name in names]
        if len(names) < _FEWEST or any((after & ~before).any() for before, after in itertools.pairwise(flags)):
            continue
        if len(np.unique(np.sum(flags, axis=0))) == len(names) + 1:
            found.append((names, "thermometer", "each set column implies the one before"))
    return found


def _side_by_side(binary: Mapping[str, Flags], columns: list[str]) -> list[Finding]:
    """Dummies that stand side by side, whatever their names."""
    found: list[Finding] = []
    start = 0
    while start < len(columns):
        end, n_set = start, np.zeros(1, np.intp)
        group: tuple[str, ...] = ()
        while end < len(columns) and columns[end] in binary and binary[columns[end]].any():
            n_set = n_set + binary[columns[end]]
            end += 1
            if (n_set > 1).any():
                break
            if end - start >= _FEWEST and (n_set == 1).all():
                group = tuple(columns[start:end])
                break
        if group:
            found.append((group, "dummies", f"exactly one of these {len(group)} columns is set in every row"))
        start = end if group else start + 1
    return found


def _why_kept(series: nw.Series[Any]) -> tuple[Found, str] | None:
    """What a column is if it is no feature, and why; None for a feature."""
    dtype = series.dtype
    if dtype in (nw.Datetime, nw.Date):
        return "date", f"it is of type {dtype}"
    if dtype.is_integer():
        return _identifier(series)
    if dtype not in (nw.String, nw.Object):
        return None
    if dtype == nw.Object:
        kind = pd.api.types.infer_dtype(series.to_numpy(), skipna=True)
        if kind in ("date", "datetime", "datetime64"):
            return "date", "it holds dates"
        if kind != "string":
            return None
    texts = series.drop_nulls().unique()
    cells = [cell for cell in texts.to_list() if isinstance(cell, str)]
    if cells and all(map(_is_date, cells)):
        return "date", "all its texts are dates"
    if len(cells) == len(series) >= _FEWEST_TEXTS:
        return "identifier", "it has a different text in every row"
    if len(cells) > MOST_CATEGORIES:
        return (
            "free text",
            f"it has {len(cells)} different texts, more than the {MOST_CATEGORIES} categories that are read",
        )
    return _identifier(series)


def _identifier(series: nw.Series[Any]) -> tuple[Found, str] | None:
    words = [word.lower() for word in _WORDS.findall(series.name)]
    named = bool(words) and (words[-1] in _NAMES_AT_THE_END or words[0] in _NAMES_AT_THE_START)
    if named and len(series) > 1 and series.n_unique() == len(series) and not series.null_count():
        return "identifier", "its name says so, and it has a different value in every row"
    return None


def _is_date(text: str) -> bool:
    if not _ISO_DATE.fullmatch(text):
        return False
    try:
        datetime.fromisoformat(text)
    except ValueError:
        return False
    return True
