"""Tables of results: mean and both spreads of every method, and a comparison with the paper's figures."""

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
_NOTHING = "–"  # noqa: RUF001  a dash, not a minus


def summarise(rows: pd.DataFrame, metrics: Sequence[str]) -> pd.DataFrame:
    """The mean and both spreads of every metric, for each dataset, method, epsilon and reading.

    Instances that were not measured (NaN) and failed cells are left out. A mean over no instance is NaN.

    Args:
        rows: One line per explained instance.
        metrics: Names of metrics, which are columns of the rows. A metric by ε, such as ``"RVR"``, is read at each
            line's own ε; see `at_epsilon`.

    Returns:
        A frame with the columns dataset, method, epsilon, reading, metric, mean (over seeds, of the mean of each seed),
        spread_seeds (standard deviation of these means, with n - 1; NaN for one seed), spread_instances (standard
        deviation over all instances of all seeds, with n), n_seeds and n_rows.

    Raises:
        DataError: If the rows are not results, or lack a metric that is not one of the paper's.
    """
    names = list(dict.fromkeys(metrics))
    values = _measured(rows, names)
    keys = [*_LINE, "metric"]
    long = pd.concat([rows[[*_LINE, "seed"]], values], axis=1).melt(id_vars=[*_LINE, "seed"], var_name="metric")
    instances = long.groupby(keys, dropna=False)["value"]
    pooled = pd.DataFrame({"spread_instances": instances.std(ddof=0), "n_rows": instances.count()}).reset_index()
    seed_means = long.groupby([*keys, "seed"], dropna=False)["value"].mean().reset_index()
    seeds = seed_means.groupby(keys, dropna=False)["value"]
    between = {"mean": seeds.mean(), "spread_seeds": seeds.std(ddof=1), "n_seeds": seeds.count()}
    summary = pd.DataFrame(between).reset_index().merge(pooled, on=keys, validate="one_to_one")
    position = {name: index for index, name in enumerate(names)}
    summary = summary.sort_values(keys, key=lambda column: column.map(position) if column.name == "metric" else column)
    columns = [*keys, "mean", "spread_seeds", "spread_instances", "n_seeds", "n_rows"]
    return summary[columns].reset_index(drop=True)


def at_epsilon(rows: pd.DataFrame, epsilon: float | None = None) -> pd.DataFrame:
    """The lines for one ε, with a column such as RVR for every metric that is measured by ε.

    A method that depends on ε keeps its lines of that ε, any other method all its lines.

    Args:
        rows: One line per explained instance.
        epsilon: The ε of the table; None: every line is kept, and metrics by ε are read at the line's own ε, NaN for
            methods that do not depend on it.
    """
    _check(rows, _RESULTS, "results")
    if epsilon is None:
        chosen = rows.copy()
    else:
        depends = rows.groupby(["dataset", "method"])["epsilon"].transform("count") > 0
        matches = np.isclose(rows["epsilon"].to_numpy(dtype=float), epsilon)
        chosen = rows[matches | ~depends].copy()
    wanted = chosen["epsilon"] if epsilon is None else pd.Series(epsilon, index=chosen.index)
    for name in _measured_by_epsilon(rows):
        chosen[name] = np.nan
        for level in wanted.dropna().unique():
            if (column := f"{name}@{level:g}") in chosen:
                chosen[name] = chosen[name].mask(wanted == level, chosen[column].astype(float))
    return chosen


def _measured_by_epsilon(rows: pd.DataFrame) -> list[str]:
    """Names of the metrics that have a column for each ε; RVR is always one of them."""
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
        paper: Published figures, such as those in benchmarks/paper.csv.

    Returns:
        A frame in the paper's order, with the columns table, dataset (name in avcg), epsilon, method, metric, paper,
        paper_spread, ours, spread_seeds and spread_instances; NaN where there is no such cell.

    Raises:
        DataError: If the paper's tables have an unknown dataset or metric.
    """
    _check(rows, _RESULTS, "results")
    _check(paper, _PAPER, "the paper's tables")
    ours = {title: name for name, title in TITLES.items()}
    for column, valid in (("dataset", list(ours)), ("metric", list(PAPER_METRICS))):
        if unknown := sorted(set(paper[column]) - set(valid)):
            suggestion = did_you_mean(unknown[0], valid)
            raise DataError(f"The paper's tables have an unknown {column} {unknown[0]!r}. {suggestion}")
    printed = paper.rename(columns={"mean": "paper", "std": "paper_spread"}).replace({"dataset": ours})
    raw = rows[rows["reading"] == "raw"]
    levels = [float(level) for level in paper["epsilon"].unique()]
    summary = pd.concat([summarise(at_epsilon(raw, level), PAPER_METRICS).assign(epsilon=level) for level in levels])
    summary = summary.rename(columns={"mean": "ours"}).drop(columns=["reading", "n_rows"])
    return printed.merge(summary, on=["dataset", "epsilon", "method", "metric"], how="left", validate="many_to_one")


def print_table(
    console: Console,
    rows: pd.DataFrame,
    metrics: Sequence[str | Heading],
    reading: str = "raw",
    epsilon: float | None = None,
) -> None:
    """Print a table for each dataset, with methods as lines and metrics as columns, and the failed cells below.

    Args:
        console: Console to print to.
        rows: One line per explained instance.
        metrics: Metrics by name, or as headings for those that are not in the table of metrics.
        reading: Answers to measure: ``"raw"``, as the method gave them, or ``"decoded"`` to valid rows.
        epsilon: The ε of the lines and of metrics by ε; None: a line is printed for every ε.

    Raises:
        DataError: If there are no results of that reading.
    """
    _check(rows, _RESULTS, "results")
    readings = rows["reading"].dropna().unique()
    if reading not in readings:
        raise DataError(f"There are no results of the reading {reading!r}. {did_you_mean(reading, readings)}")
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
        level = "" if epsilon is None else f", ε = {epsilon:g}"
        table = _table(f"{TITLES.get(dataset, dataset)}{level} ({reading})", list(headings.values()))
        for method in [method for name, method in lines if name == dataset]:
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
    """Print a table for each dataset and ε, with methods as lines and in each column our mean and the paper's.

    Args:
        console: Console to print to.
        records: Comparison that `compare` returned.
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
    """A Markdown table of one dataset, whose cells are ``ours ±seeds ±instances / paper ±its spread``.

    Args:
        records: Comparison that `compare` returned.
        dataset: Name of the dataset in avcg.

    Raises:
        DataError: If there are no records of that dataset.
    """
    block = records[records["dataset"] == dataset]
    if block.empty:
        suggestion = did_you_mean(dataset, records["dataset"].unique())
        raise DataError(f"There is no comparison for the dataset {dataset!r}. {suggestion}")
    metrics = [heading_of(name) for name in PAPER_METRICS if (block["metric"] == name).any()]
    lines = []
    for (epsilon, method), line in block.groupby(["epsilon", "method"], sort=False):
        cells = {
            _head(metric): _beside(line[line["metric"] == metric.name], metric, spreads=True) for metric in metrics
        }
        lines.append({"ε": f"{epsilon:g}", "method": f"{method}{_fewer(line, block)}", **cells})
    # The paper's two tables of a dataset follow each other; here each epsilon is one block.
    return to_markdown(pd.DataFrame(lines).sort_values("ε", kind="stable", key=lambda column: column.astype(float)))


def summary_markdown(rows: pd.DataFrame, metrics: Sequence[str | Heading], methods: Sequence[str]) -> str:
    """A Markdown table of one dataset, with methods as lines and cells of ``mean ±seeds ±instances``.

    Args:
        rows: One line per explained instance, of one dataset and reading.
        metrics: Metrics by name, or as headings for those that are not in the table of metrics.
        methods: Names of the methods in the order of the lines; those without results are left out.
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
    """Compare a method with the robust neighbour and the per-row search on each dataset, by means of ratios over seeds.

    In each seed, the method is compared with the search of least L1 whose survival is no lower. A seed without such a
    search is left out.

    Args:
        rows: Results of a protocol with methods called "robust neighbour" and "search to ...".
        method: Name of the method to compare.

    Returns:
        A frame with the columns dataset, coverage, valid, survival, L1, columns, yNN and the ratios.
    """
    delivered = rows.where(rows["coverage"] > 0)
    figures = ["valid", "CMV", "L1", "columns", "yNN"]
    keys = [rows["dataset"], rows["seed"], rows["method"]]
    means = delivered[figures].groupby(keys).mean().join(rows["coverage"].groupby(keys).mean())
    lines = []
    for dataset in rows["dataset"].unique():
        by_method = {name: part.droplevel("method") for name, part in means.loc[dataset].groupby("method")}
        ours, neighbour = by_method[method], by_method["robust neighbour"]
        searches = [part for name, part in by_method.items() if "search" in name]
        levels = [part["L1"].where(part["CMV"] >= ours["CMV"] - 1e-9) for part in searches]
        searched = pd.concat(levels, axis=1).min(axis=1)
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
    """Measure a method that gives several answers: the shares of rows whose answers are all valid, and all different.

    Args:
        rows: One line per answer.
        method: Name of the method.

    Returns:
        A frame with the columns dataset, all valid, all different and apart, the mean distance to the nearest other
        answer.
    """
    own = rows[rows["method"] == method]
    groups = own.groupby(["dataset", "seed", "row"]).agg(valid=("valid", "min"), nearest=("apart", "min"))
    shares = pd.DataFrame({"all valid": groups["valid"] == 1, "all different": groups["nearest"] > 1e-6})
    by_dataset = shares.groupby(["dataset", "seed"]).mean().groupby("dataset").mean()
    return by_dataset.join(own.groupby("dataset")["apart"].mean()).reset_index()


def to_markdown(frame: pd.DataFrame, digits: int = 3) -> str:
    """The columns of a frame, without its index, as a Markdown table.

    Args:
        frame: Frame of texts and numbers.
        digits: Number of decimals of floats; 3 by default.

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


def _fewer(part: pd.DataFrame, total: pd.DataFrame) -> str:
    """A note for means over fewer seeds than others have; else an empty text."""
    count, most = part["n_seeds"].max(), total["n_seeds"].max()
    return "" if pd.isna(count) or count in (0, most) else f" ({count:.0f} of {most:.0f} seeds)"


def _check(frame: pd.DataFrame, columns: Sequence[str], what: str) -> None:
    if missing := [column for column in columns if column not in frame]:
        raise DataError(f"A table of {what} lacks the columns {enumerate_some(missing)}.")


def _measured(rows: pd.DataFrame, names: Sequence[str]) -> pd.DataFrame:
    """The metrics as numbers; NaN in failed cells, and for metrics of the paper that were not measured."""
    _check(rows, _RESULTS, "results")
    by_epsilon = [name for name in _measured_by_epsilon(rows) if name in names and name not in rows]
    source = at_epsilon(rows) if by_epsilon else rows
    for name in names:
        if name not in source and name not in PAPER_METRICS:
            others = [column for column in rows if column not in _RESULTS]
            raise DataError(f"There is no metric {name!r} among the results. {did_you_mean(name, others)}")
    return source.reindex(columns=list(names)).astype(float).mask(rows["error"].notna())


def _records(frame: pd.DataFrame) -> Iterator[dict[str, Any]]:
    for record in frame.to_dict("records"):
        yield {str(name): value for name, value in record.items()}


def _name(method: str, own: float, epsilon: float | None) -> str:
    """The name of a method in a table: with its own ε, unless the whole table is for one ε."""
    return method if epsilon is not None or math.isnan(own) else f"{method} ε={own:g}"


def _heading(metric: str | Heading) -> Heading:
    return metric if isinstance(metric, Heading) else heading_of(metric)


def _head(heading: Heading) -> str:
    """The heading of a column: name, unit, and an arrow in the better direction."""
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
    """Numbers with the digits of their metric; all in scientific notation if the first would be rounded to zero."""
    digits = f".{heading.digits}f"
    tiny = values[0] != 0 and float(format(values[0], digits)) == 0
    return [_NOTHING if math.isnan(value) else format(value, ".0e" if tiny else digits) for value in values]


def _ours(record: dict[str, Any], heading: Heading, spreads: bool = True) -> str:
    values = _figures(heading, record["ours"], record["spread_seeds"], record["spread_instances"])
    return " ±".join(values) if spreads and values[0] != _NOTHING else values[0]


def _beside(records: pd.DataFrame, heading: Heading, spreads: bool) -> str:
    """Our value of a metric beside the paper's; the paper's tables may print two values for one cell."""
    lines = list(_records(records))
    if not lines:
        return _NOTHING
    printed = [_figures(heading, line["paper"], line["paper_spread"]) for line in lines]
    paper = " or ".join(dict.fromkeys(" ±".join(pair) if spreads else pair[0] for pair in printed))
    ours = _ours(lines[0], heading, spreads)
    return f"{ours} / {paper}" if spreads else f"{ours} ({paper})"
