"""Stored results as tables, and the page that shows them: no figure is ever typed.

    python benchmarks/peers/tables.py docs/results/peers.md

A block of the page begins with ``<!-- peers: DATASET BATCH -->`` and ends with ``<!-- end -->``; what stands between is
written anew.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from judging import MEASURES

from avcg.bench.store import KEYS as STORE_KEYS
from avcg.bench.store import Key, Store, file_name, keys_of
from avcg.bench.tables import to_markdown

RESULTS = Path(__file__).parents[1] / "results" / "peers"
KEYS = ["dataset", "seed", "batch", "method"]
# What is asked: processor time against any per-row method that survives so well, and distance against the same.
SURVIVES, TIMES_LESS, TIMES_AS_FAR = 0.95, 100.0, 1.3
# An amortised peer that is under a restrictive licence: milliseconds a row as reported for it, not measured here.
CITED, CITED_MS = "Alibi's CFRL", 0.24
_NOTHING = "–"  # noqa: RUF001  a dash that is no minus
_BLOCK = re.compile(r"(<!-- peers: (?P<dataset>\w+) (?P<batch>\d+) -->\n).*?(<!-- end -->)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class Results:
    """Everything measured so far.

    Attributes:
        rows: One line for each row that a method was asked about, with `KEYS` and what the judge says.
        cells: One entry for each method, batch and number of threads: how long it took, or why it failed.
    """

    rows: pd.DataFrame
    cells: list[dict[str, Any]]

    def of(self, dataset: str, batch: int) -> Results:
        """What belongs in one table."""
        mine = (self.rows["dataset"] == dataset) & (self.rows["batch"] == batch)
        return Results(
            self.rows[mine], [one for one in self.cells if (one["dataset"], one["batch"]) == (dataset, batch)]
        )


def read_results(folder: Path) -> Results:
    """What is stored: a store of the benchmark for each size of batch; nothing where there is none.

    Args:
        folder: The folder of the stores.
    """
    rows, cells = [pd.DataFrame(columns=[*KEYS, "row", *MEASURES])], []
    for place in sorted(folder.glob("*/manifest.json")):
        store = Store(place.parent)
        batch = store.rows()
        rows.append(batch[batch["error"].isna()].assign(batch=int(place.parent.name))[list(rows[0].columns)])
        cells += [run for cell in store.about().values() for run in cell["runs"]]
    return Results(pd.concat(rows[1:], ignore_index=True) if len(rows) > 1 else rows[0], cells)


def store_run(folder: Path, run: dict[str, Any], rows: pd.DataFrame | None, about: dict[str, Any]) -> None:
    """Store how long one method took with one number of threads, and what the judge says of its answers.

    Args:
        folder: The folder of the stores.
        run: ``dataset``, ``seed``, ``batch``, ``method``, ``threads``, times, and ``error``: why there are no answers.
        rows: What the judge says; None: what is stored of this method stays.
        about: How the batch was run.
    """
    store = Store(folder / str(run["batch"]))
    key: Key = (run["dataset"], run["seed"], run["method"], None)
    if rows is not None:
        lines = rows.assign(answer=0, reading="raw", error=np.nan)
    elif key in store.finished():
        stored = store.rows()
        lines = stored[[each == key for each in keys_of(stored)]].drop(columns=STORE_KEYS)
    else:
        lines = pd.DataFrame({"row": [-1], "answer": [0], "reading": ["raw"], "error": [run["error"]]})
    before = store.about().get(file_name(key), {"runs": []})["runs"]
    runs = [each for each in before if each["threads"] != run["threads"]]
    store.forget([key])
    store.write(key, lines, {"runs": sorted([*runs, run], key=lambda each: each["threads"])})
    store.compact(about)


def fastest(results: Results, ours: Sequence[str]) -> str | None:
    """Of our ways to answer, the one that took the least processor time at the fewest threads; None: there is none."""
    times = {(cell["threads"], cell["cpu"] / cell["asked"]): cell["method"] for cell in results.cells
             if cell["method"] in ours and cell["error"] is None}  # fmt: skip
    return times[min(times)] if times else None


def summary(results: Results, order: Sequence[str], ours: str | None) -> pd.DataFrame:
    """One line for each method that did not fail.

    Distances are compared on the rows that both answered, processor times at the fewest threads.

    Args:
        results: Of one dataset and batch.
        order: Of the methods; others are left out.
        ours: The method the others are compared with; None: there is none.
    """
    threads = sorted({cell["threads"] for cell in results.cells})
    times = {(cell["method"], cell["threads"]): cell for cell in results.cells if cell["error"] is None}
    mine = results.rows[results.rows["method"] == ours].set_index("row")
    lines = []
    for name in order:
        if not threads or (name, threads[0]) not in times:
            continue
        rows = results.rows[results.rows["method"] == name].set_index("row")
        answered = rows[rows["answered"] == 1]
        both = answered.index.intersection(mine.index[mine["answered"] == 1])
        line: dict[str, Any] = {
            "method": name,
            "rows": len(rows),
            "coverage": rows["answered"].mean(),
            "valid": answered["valid"].mean(),
            "survival": answered["CMV"].mean(),
            "L1": answered["L1"].mean(),
            "broken": (answered["violations"] > 0).mean() if len(answered) else np.nan,
            "fit": _seconds(times[name, threads[0]]["fit_cpu"]),
        }
        line |= {f"cpu{count}": _milliseconds(times.get((name, count)), "cpu") for count in threads}
        line[f"wall{threads[-1]}"] = _milliseconds(times.get((name, threads[-1])), "wall")
        line["slower"] = line[f"cpu{threads[0]}"] / _milliseconds(times.get((ours, threads[0])), "cpu")
        line["farther"] = mine.loc[both, "L1"].mean() / answered.loc[both, "L1"].mean()
        lines.append(line)
    return pd.DataFrame(lines)


def _seconds(fit_cpu: float | None) -> float:
    """Of fitting; NaN where that was done elsewhere."""
    return np.nan if fit_cpu is None else fit_cpu


def _milliseconds(cell: dict[str, Any] | None, kind: str) -> float:
    """Of a row."""
    return np.nan if cell is None else 1e3 * cell[kind] / cell["asked"]


def markdown(results: Results, order: Sequence[str], per_row: Sequence[str], ours: Sequence[str]) -> str:
    """The table, what is asked of it, and who failed and why.

    Args:
        results: Of one dataset and batch.
        order: Of the methods.
        per_row: Those that start over for every row.
        ours: Ways to ask what the others are compared with.
    """
    reference = fastest(results, ours)
    found = summary(results, order, reference)
    parts = []
    if len(found):
        batch = int(results.rows["batch"].iloc[0])
        parts.append(to_markdown(_worded(found, batch)))
        parts += [] if reference is None else [verdicts(found, per_row, reference)]
    failed = {cell["method"]: cell["error"] for cell in results.cells if cell["error"] is not None}
    reasons = [f"- {name}: {failed[name]}" for name in order if name in failed]
    if reasons:
        parts.append("Not in the table:\n\n" + "\n".join(reasons))
    return "\n\n".join(parts) or "Nothing has been measured."


def _worded(found: pd.DataFrame, batch: int) -> pd.DataFrame:
    shown = pd.DataFrame({"method": found["method"]})
    shown["rows"] = [f"{count:,}" if count == batch else f"{count:,} of {batch:,}" for count in found["rows"]]
    for name in ("coverage", "valid", "survival", "L1", "broken"):
        shown[name] = [_fixed(value, 3) for value in found[name]]
    shown["fit (s)"] = [_short(value) for value in found["fit"]]
    for name in found.columns:
        count = re.fullmatch(r"(cpu|wall)(\d+)", name)
        if count:
            kind = {"cpu": "processor", "wall": "wall"}[count[1]]
            threads = "1 thread" if count[2] == "1" else f"{count[2]} threads"
            shown[f"{kind} ms a row, {threads}"] = [_short(value) for value in found[name]]
    shown["its time / ours"] = [_short(value) for value in found["slower"]]
    shown["our L1 / its"] = [_fixed(value, 2) for value in found["farther"]]
    return shown


def _fixed(value: float, digits: int) -> str:
    return _NOTHING if np.isnan(value) else f"{value:.{digits}f}"


def _short(value: float) -> str:
    return _NOTHING if np.isnan(value) else f"{value:.3g}" if value < 100 else f"{value:,.0f}"


def verdicts(found: pd.DataFrame, per_row: Sequence[str], ours: str) -> str:
    """For every per-row method that survives well enough, whether ours is as much faster and as near as is asked."""
    lines = [
        f"Ours is {ours!r}. Asked of it, against per-row methods whose survival is at least {SURVIVES:g}: at least"
        f" {TIMES_LESS:g} times less processor time, at no more than {TIMES_AS_FAR:g} times the distance.",
        "",
    ]
    robust = found[found["method"].isin(per_row) & (found["survival"] >= SURVIVES)]
    for name, slower, farther in zip(robust["method"], robust["slower"], robust["farther"], strict=True):
        lines.append(
            f"- {name}: {_short(slower)} times less ({_met(slower >= TIMES_LESS)}), {farther:.2f} times as far"
            f" ({_met(farther <= TIMES_AS_FAR)})"
        )
    took = found[found["method"] == ours].filter(like="cpu").to_numpy(np.float64)[0, 0]
    lines.append(
        f"- {CITED}, amortised, is reported to take about {CITED_MS:g} ms a row; its licence does not let it be"
        f" shipped, so it was not run. Ours takes {_short(took)} ms ({_met(took < CITED_MS)})"
    )
    return "\n".join(lines)


def _met(yes: bool) -> str:
    return "met" if yes else "missed"


def filled(text: str, results: Results, order: Sequence[str], per_row: Sequence[str], ours: Sequence[str]) -> str:
    """A page with every block written anew."""

    def block(found: re.Match[str]) -> str:
        mine = results.of(found["dataset"], int(found["batch"]))
        return f"{found[1]}\n{markdown(mine, order, per_row, ours)}\n\n{found[4]}"

    return _BLOCK.sub(block, text)


def main() -> None:
    """Write the tables of a page anew."""
    from methods import METHODS, OURS

    if len(sys.argv) != 2:
        sys.exit(f"usage: {sys.argv[0]} PAGE")
    page, results = Path(sys.argv[1]), read_results(RESULTS)
    order, per_row = [one.name for one in METHODS], [one.name for one in METHODS if one.per_row]
    page.write_text(filled(page.read_text(), results, order, per_row, OURS))


if __name__ == "__main__":
    main()
