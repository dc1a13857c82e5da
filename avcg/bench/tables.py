"""Results as tables: the mean and both spreads of every method, beside what the paper printed."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd

from avcg.errors import DataError, did_you_mean, enumerate_some
from avcg.metrics.table import PAPER_METRICS, Heading, heading_of

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

TITLES = {
    "adult": "Adult Income", "breast_cancer": "Breast Cancer", "heart": "Heart Disease", "spambase": "Spambase",
    "mnist": "MNIST", "cifar10": "CIFAR-10", "sba": "SBA loans",
}  # fmt: skip
_ARROWS = {"higher": " ↑", "lower": " ↓", "none": ""}
_LINE = ["dataset", "method", "epsilon", "reading"]
_RESULTS = [*_LINE, "seed", "row", "error"]
_PAPER = ["table", "dataset", "epsilon", "method", "metric", "mean", "std"]
_NOTHING = "–"  # noqa: RUF001  a dash that is no minus


def summarise(rows: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """The mean and both spreads of every metric, for each dataset, method, epsilon and reading.

    An instance that was not measured (NaN) is left out, and so is a failed cell; what nothing was measured of is NaN.

    Args:
        rows: One line per explained instance.
        metrics: Columns of rows. A metric by ε, such as ``"RVR"``, is read at each line's own ε; see `at_epsilon`.

    Returns:
        Columns dataset, method, epsilon, reading, metric, mean (over seeds, of the means of each), spread_seeds
        (n - 1 in the denominator, NaN for one seed), spread_instances (over all instances of all seeds, n in the
        denominator), n_seeds and n_rows.

    Raises:
        DataError: If the rows are not results, or lack a metric that is not one of the paper's.
    """
    names = list(dict.fromkeys(metrics))
    values = _measured(rows, names)
    keys = [*_LINE, "metric"]
    long = pd.concat([rows[[*_LINE, "seed"]], values], axis=1).melt(id_vars=[*_LINE, "seed"], var_name="metric")
    instances = long.groupby(keys, dropna=False)["value"]
    pooled = pd.DataFrame({"spread_instances": instances.std(ddof=0), "n_rows": instances.count()}).reset_index()
    each = long.groupby([*keys, "seed"], dropna=False)["value"].mean().reset_index()
    seeds = each.groupby(keys, dropna=False)["value"]
    between = {"mean": seeds.mean(), "spread_seeds": seeds.std(ddof=1), "n_seeds": seeds.count()}
    summary = pd.DataFrame(between).reset_index().merge(pooled, on=keys, validate="one_to_one")
    place = {name: index for index, name in enumerate(names)}
    summary = summary.sort_values(keys, key=lambda column: column.map(place) if column.name == "metric" else column)
    columns = [*keys, "mean", "spread_seeds", "spread_instances", "n_seeds", "n_rows"]
    return summary[columns].reset_index(drop=True)


def at_epsilon(rows: pd.DataFrame, epsilon: float | None = None) -> pd.DataFrame:
    """The lines of a table of one ε, with a column such as RVR for every metric that is measured by ε.

    A method that depends on ε is represented by its lines of that ε, any other by all its lines.

    Args:
        rows: One line per explained instance.
        epsilon: The ε of the table. None keeps every line, and reads metrics by ε at the line's own ε: NaN for a method
            that does not depend on it.
    """
    _check(rows, _RESULTS, "results")
    if epsilon is None:
        chosen = rows.copy()
    else:
        depends = rows.groupby(["dataset", "method"])["epsilon"].transform("count") > 0
        there = np.isclose(rows["epsilon"].to_numpy(dtype=float), epsilon)
        chosen = rows[there | ~depends].copy()
    wanted = chosen["epsilon"] if epsilon is None else pd.Series(epsilon, index=chosen.index)
    for name in _measured_by_epsilon(rows):
        chosen[name] = np.nan
        for level in wanted.dropna().unique():
            if (column := f"{name}@{level:g}") in chosen:
                chosen[name] = chosen[name].mask(wanted == level, chosen[column].astype(float))
    return chosen


def _measured_by_epsilon(rows: pd.DataFrame) -> list[str]:
    """Metrics that have a column for each ε, RVR among them in any case."""
    return list(dict.fromkeys(["RVR", *(str(name).partition("@")[0] for name in rows if "@" in str(name))]))


def failures(rows: pd.DataFrame) -> pd.DataFrame:
    """The cells that ended in an error, with columns dataset, method, epsilon, reading, seed and error."""
    _check(rows, _RESULTS, "results")
    columns = [*_LINE, "seed", "error"]
    return rows.loc[rows["error"].notna(), columns].drop_duplicates().sort_values(columns).reset_index(drop=True)


def compare(rows: pd.DataFrame, paper: pd.DataFrame) -> pd.DataFrame:
    """Our raw results beside each line of the paper's tables.

    Args:
        rows: One line per explained instance.
        paper: benchmarks/paper.csv.

    Returns:
        In the paper's order, with columns table, dataset (by our name), epsilon, method, metric, paper, paper_spread,
        ours, spread_seeds and spread_instances; NaN where we have no such cell.

    Raises:
        DataError: If the paper's tables name a dataset or a metric that is not known.
    """
    _check(rows, _RESULTS, "results")
    _check(paper, _PAPER, "the paper's tables")
    ours = {title: name for name, title in TITLES.items()}
    for column, known in (("dataset", list(ours)), ("metric", list(PAPER_METRICS))):
        if strange := sorted(set(paper[column]) - set(known)):
            raise DataError(f"The paper's tables have an unknown {column}. {did_you_mean(strange[0], known)}")
    printed = paper.rename(columns={"mean": "paper", "std": "paper_spread"}).replace({"dataset": ours})
    raw = rows[rows["reading"] == "raw"]
    levels = [float(level) for level in paper["epsilon"].unique()]
    found = pd.concat([summarise(at_epsilon(raw, level), PAPER_METRICS).assign(epsilon=level) for level in levels])
    found = found.rename(columns={"mean": "ours"}).drop(columns=["reading", "n_rows"])
    return printed.merge(found, on=["dataset", "epsilon", "method", "metric"], how="left", validate="many_to_one")


def print_table(
    console: Console,
    rows: pd.DataFrame,
    metrics: Sequence[str | Heading],
    reading: str = "raw",
    epsilon: float | None = None,
) -> None:
    """One table for each dataset: methods as lines, metrics as columns, and what failed below.

    Args:
        console: Where to print.
        rows: One line per explained instance.
        metrics: Columns of rows, by name or as the headings of metrics that are not in the table of metrics.
        reading: ``"raw"`` or ``"decoded"``.
        epsilon: The ε of the lines and of metrics by ε. None prints a line for every ε there is.

    Raises:
        DataError: If there is no result of that reading.
    """
    _check(rows, _RESULTS, "results")
    known = rows["reading"].dropna().unique()
    if reading not in known:
        raise DataError(f"There are no results of the reading {reading!r}. {did_you_mean(reading, known)}")
    shown = at_epsilon(rows[rows["reading"] == reading], epsilon)
    headings = {heading.name: heading for heading in map(_heading, metrics)}
    cells = {
        (record["dataset"], _name(record["method"], record["epsilon"], epsilon), record["metric"]): _ours(
            record, headings[record["metric"]]
        )
        for record in _records(summarise(shown, list(headings)).rename(columns={"mean": "ours"}))
    }
    lines = {
        (record["dataset"], _name(record["method"], record["epsilon"], epsilon)): None for record in _records(shown)
    }
    for dataset in dict.fromkeys(dataset for dataset, _ in lines):
        at = "" if epsilon is None else f", ε = {epsilon:g}"
        table = _table(f"{TITLES.get(dataset, dataset)}{at} ({reading})", list(headings.values()))
        for method in [method for where, method in lines if where == dataset]:
            table.add_row(method, *(cells[dataset, method, name] for name in headings))
        console.print(table)
    console.print(
        "Mean over seeds, ± the standard deviation over seeds of their means, ± the standard deviation over all "
        f"instances. {_NOTHING}: not measured, or one seed only.\n",
        markup=False,
    )
    for record in _records(failures(shown)):
        name = _name(record["method"], record["epsilon"], None)
        console.print(f"Failed: {record['dataset']}, seed {record['seed']}, {name}: {record['error']}", markup=False)


def print_comparison(console: Console, records: pd.DataFrame) -> None:
    """One table for each dataset and epsilon: methods as lines, and in each column our mean and the paper's.

    Args:
        console: Where to print.
        records: From :func:`compare`.
    """
    metrics = [heading_of(name) for name in PAPER_METRICS if (records["metric"] == name).any()]
    for (dataset, epsilon), block in records.groupby(["dataset", "epsilon"], sort=False):
        table = _table(f"{TITLES.get(str(dataset), str(dataset))}, ε = {epsilon:g}", metrics)
        for method, line in block.groupby("method", sort=False):
            cells = [_beside(line[line["metric"] == metric.name], metric, spreads=False) for metric in metrics]
            table.add_row(str(method), *cells)
        console.print(table)
    console.print(
        f"Our mean over seeds, and the paper's in parentheses; 'or' where two of its tables differ. {_NOTHING}: no "
        "such cell. A method that does not depend on ε has the same values at every ε, but for RVR.\n",
        markup=False,
    )


def comparison_markdown(records: pd.DataFrame, dataset: str) -> str:
    """A pipe table of one dataset: each cell is ``ours ±seeds ±instances / paper ±its spread``.

    Args:
        records: From :func:`compare`.
        dataset: By our name.

    Raises:
        DataError: If there are no records of that dataset.
    """
    block = records[records["dataset"] == dataset]
    if block.empty:
        known = did_you_mean(dataset, records["dataset"].unique())
        raise DataError(f"There is no comparison for the dataset {dataset!r}. {known}")
    metrics = [heading_of(name) for name in PAPER_METRICS if (block["metric"] == name).any()]
    lines = []
    for (epsilon, method), line in block.groupby(["epsilon", "method"], sort=False):
        cells = {_head(each): _beside(line[line["metric"] == each.name], each, spreads=True) for each in metrics}
        lines.append({"ε": f"{epsilon:g}", "method": f"{method}{_fewer(line, block)}", **cells})
    # The paper's two tables of a dataset follow each other; here each epsilon is one block.
    return to_markdown(pd.DataFrame(lines).sort_values("ε", kind="stable", key=lambda column: column.astype(float)))


def summary_markdown(rows: pd.DataFrame, metrics: Sequence[str | Heading], methods: Sequence[str]) -> str:
    """A pipe table of one dataset: methods as lines, each cell ``mean ±seeds ±instances``.

    Args:
        rows: One line per explained instance, of one dataset and reading.
        metrics: Columns of rows, by name or as the headings of metrics that are not in the table of metrics.
        methods: The lines, in order; those without results are left out.
    """
    headings = {heading.name: heading for heading in map(_heading, metrics)}
    summary = summarise(at_epsilon(rows), list(headings)).rename(columns={"mean": "ours"})
    cells: dict[tuple[str, str], dict[str, str]] = {}
    for record in _records(summary.sort_values("epsilon", kind="stable", na_position="first")):
        heading = headings[record["metric"]]
        line = record["method"], _name(record["method"], record["epsilon"], None)
        cells.setdefault(line, {})[_head(heading)] = _ours(record, heading)
    lines = []
    for method, name in [line for method in methods for line in cells if line[0] == method]:
        seeds = _fewer(summary[summary["method"] == method], summary)
        ordered = {_head(heading): cells[method, name][_head(heading)] for heading in headings.values()}
        lines.append({"method": f"{name}{seeds}", **ordered})
    return to_markdown(pd.DataFrame(lines))


def yardsticks(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    """A method beside the robust neighbour and the per-row search, for each dataset: the mean over seeds of ratios.

    The search is taken, in each seed, at the level of least L1 that survives no less; where none does, there is no
    ratio, and the seed is left out.

    Args:
        rows: Of a protocol with methods called "robust neighbour" and "search to ...".
        method: Whose ratios are wanted.

    Returns:
        Columns dataset, coverage, valid, survival, L1, columns, yNN and the ratios.
    """
    delivered = rows.where(rows["coverage"] > 0)
    figures = ["valid", "CMV", "L1", "columns", "yNN"]
    keys = [rows["dataset"], rows["seed"], rows["method"]]
    means = delivered[figures].groupby(keys).mean().join(rows["coverage"].groupby(keys).mean())
    lines = []
    for dataset in rows["dataset"].unique():
        of = {name: part.droplevel("method") for name, part in means.loc[dataset].groupby("method")}
        ours, neighbour = of[method], of["robust neighbour"]
        level = [part["L1"].where(part["CMV"] >= ours["CMV"] - 1e-9) for name, part in of.items() if "search" in name]
        searched = pd.concat(level, axis=1).min(axis=1)
        lines.append(
            {
                "dataset": dataset,
                "coverage": ours["coverage"].mean(),
                "valid": ours["valid"].mean(),
                "survival": ours["CMV"].mean(),
                "L1": ours["L1"].mean(),
                "columns": ours["columns"].mean(),
                "yNN": ours["yNN"].mean(),
                "L1 / robust neighbour's": (ours["L1"] / neighbour["L1"]).mean(),
                "yNN / robust neighbour's": (ours["yNN"] / neighbour["yNN"]).mean(),
                "L1 / search's at no lower survival": (ours["L1"] / searched).mean(),
            }
        )
    return pd.DataFrame(lines)


def several(rows: pd.DataFrame, method: str) -> pd.DataFrame:
    """Of a method that was asked for more answers: on what share of rows all are valid, and all differ.

    Args:
        rows: One line per answer.
        method: Which.

    Returns:
        Columns dataset, all valid, all different and apart, the mean distance to the nearest other answer.
    """
    mine = rows[rows["method"] == method]
    each = mine.groupby(["dataset", "seed", "row"]).agg(valid=("valid", "min"), nearest=("apart", "min"))
    shares = pd.DataFrame({"all valid": each["valid"] == 1, "all different": each["nearest"] > 1e-6})
    by_dataset = shares.groupby(["dataset", "seed"]).mean().groupby("dataset").mean()
    return by_dataset.join(mine.groupby("dataset")["apart"].mean()).reset_index()


def to_markdown(frame: pd.DataFrame, digits: int = 3) -> str:
    """The columns of a frame, without its index, as a pipe table.

    Args:
        frame: Of text and numbers.
        digits: After the point of a number that is not whole.

    >>> print(to_markdown(pd.DataFrame({"method": ["a"], "L1": [0.5]}), digits=2))
    | method | L1 |
    |---|---|
    | a | 0.50 |
    """

    def cell(value: Any) -> str:
        if pd.isna(value):
            return _NOTHING
        text = f"{value:.{digits}f}" if isinstance(value, float) else str(value)
        return text.replace("|", "\\|").replace("\n", " ")

    lines = [
        list(map(cell, frame.columns)),
        *([cell(value) for value in line] for line in frame.to_numpy(dtype=object)),
    ]
    head, *body = (f"| {' | '.join(line)} |" for line in lines)
    return "\n".join([head, "|" + "---|" * len(frame.columns), *body])


def _fewer(some: pd.DataFrame, everything: pd.DataFrame) -> str:
    """A remark for means over fewer seeds than others have."""
    count = some["n_seeds"].max()
    if pd.isna(count) or count == 0 or count == everything["n_seeds"].max():
        return ""
    return f" ({count:.0f} of {everything['n_seeds'].max():.0f} seeds)"


def _check(frame: pd.DataFrame, columns: Sequence[str], what: str) -> None:
    if missing := [column for column in columns if column not in frame]:
        raise DataError(f"A table of {what} lacks the columns {enumerate_some(missing)}.")


def _measured(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The metrics as numbers, NaN in failed cells and throughout where the paper's metric was never measured."""
    _check(rows, _RESULTS, "results")
    read = [name for name in _measured_by_epsilon(rows) if name in names and name not in rows]
    source = at_epsilon(rows) if read else rows
    for name in names:
        if name not in source and name not in PAPER_METRICS:
            others = [column for column in rows if column not in _RESULTS]
            raise DataError(f"There is no metric {name!r} among the results. {did_you_mean(name, others)}")
    return source.reindex(columns=list(names)).astype(float).mask(rows["error"].notna())


def _records(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for record in frame.to_dict("records"):
        yield {str(name): value for name, value in record.items()}


def _name(method: str, own: float, epsilon: float | None) -> str:
    """A method's name in a table of one epsilon, or of all where its own tells its lines apart."""
    return method if epsilon is not None or math.isnan(own) else f"{method} ε={own:g}"


def _heading(metric: str | Heading) -> Heading:
    return metric if isinstance(metric, Heading) else heading_of(metric)


def _head(heading: Heading) -> str:
    """The head of a column: name, unit, and an arrow to where it is better."""
    return f"{heading.text}{_ARROWS[heading.direction]}"


def _table(title: str, headings: Sequence[Heading]) -> Table:
    from rich import box
    from rich.table import Table

    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    table.add_column("method")
    for heading in headings:
        table.add_column(_head(heading), justify="right")
    return table


def _figures(heading: Heading, *values: float) -> list[str]:
    """Numbers with the digits of their metric, all in powers of ten where the first would be rounded to zero."""
    digits = f".{heading.digits}f"
    tiny = values[0] != 0 and float(format(values[0], digits)) == 0
    return [_NOTHING if math.isnan(value) else format(value, ".0e" if tiny else digits) for value in values]


def _ours(record: dict[str, Any], heading: Heading, spreads: bool = True) -> str:
    values = _figures(heading, record["ours"], record["spread_seeds"], record["spread_instances"])
    return " ±".join(values) if spreads and values[0] != _NOTHING else values[0]


def _beside(records: pd.DataFrame, heading: Heading, spreads: bool) -> str:
    """One metric of one method, ours and the paper's; its tables may print two values for one cell."""
    lines = list(_records(records))
    if not lines:
        return _NOTHING
    printed = [_figures(heading, line["paper"], line["paper_spread"]) for line in lines]
    theirs = " or ".join(dict.fromkeys(" ±".join(pair) if spreads else pair[0] for pair in printed))
    ours = _ours(lines[0], heading, spreads)
    return f"{ours} / {theirs}" if spreads else f"{ours} ({theirs})"
