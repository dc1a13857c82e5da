"""``avcg bench``: run benchmark protocols, and show their results."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, cast

import typer

from avcg.console import console
from avcg.errors import DataError

if TYPE_CHECKING:
    import pandas as pd

bench_app = typer.Typer(help="Run benchmark protocols, and show their results.", no_args_is_help=True)

File = Annotated[str, typer.Argument(metavar="PROTOCOL", help="A file such as benchmarks/paper.toml.")]
Results = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Folder of the results (default: results/NAME beside the protocol)."),
]


@bench_app.command("run")
def run_protocol(
    protocol: File,
    results: Results = None,
    dataset: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Run only this dataset; repeatable.")
    ] = None,
    seed: Annotated[list[int] | None, typer.Option(metavar="N", help="Run only this seed; repeatable.")] = None,
    method: Annotated[list[str] | None, typer.Option(metavar="NAME", help="Run only this method; repeatable.")] = None,
    workers: Annotated[int, typer.Option(help="Processes, with one thread each.", min=1)] = 2,
    backend: Annotated[
        str,
        typer.Option(
            metavar="loky|ray|dask", help="Engine of the processes; ray and dask need their extras and use a cluster."
        ),
    ] = "loky",
    device: Annotated[str, typer.Option(help="Device of the networks, e.g. cuda.")] = "cpu",
    retry: Annotated[bool, typer.Option("--retry", help="Run failed cells again.")] = False,
    renew: Annotated[
        bool, typer.Option("--renew", help="Run cells again that were made by another version of the protocol.")
    ] = False,
) -> None:
    """Run the cells of a protocol that are not stored yet.

    A run that was interrupted continues where it stopped.
    """
    from avcg.bench.run import Backend, run
    from avcg.bench.store import Store
    from avcg.bench.tables import failures

    folder = run(
        protocol, results, only_datasets=dataset or (), only_seeds=seed or (), only_methods=method or (),
        workers=workers, backend=cast("Backend", backend), device=device, retry=retry, renew=renew,
    )  # fmt: skip
    store = Store(folder)
    failed = failures(store.rows())
    typer.echo(f"{folder}: {len(store.finished())} cells, {len(failed)} failed.")
    if len(failed):
        typer.echo(failed.to_string(index=False))
        raise typer.Exit(1)


@bench_app.command("table")
def show_table(
    protocol: File,
    results: Results = None,
    reading: Annotated[
        str,
        typer.Option(
            metavar="raw|decoded", help="Answers to measure: as the method gave them, or decoded to valid rows."
        ),
    ] = "raw",
    epsilon: Annotated[
        float | None, typer.Option(help="Epsilon of Rashomon sets (default: that of each method).")
    ] = None,
    metric: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="Print only this metric; repeatable.")
    ] = None,
) -> None:
    """Print the means of all methods with both spreads: over seeds, and over instances."""
    from avcg.bench.protocol import read_protocol
    from avcg.bench.tables import print_table
    from avcg.metrics.table import METRICS, heading_of

    rows, extra = _rows(protocol, results), read_protocol(protocol).extra_metrics()
    shown = [column.name for column in METRICS if column.shown and (column.name in rows or column.by_epsilon)]
    names = metric or [*shown, *(column.name for column in extra)]
    print_table(console(), rows, [heading_of(name, extra) for name in names], reading, epsilon)


@bench_app.command("compare")
def show_comparison(
    protocol: File,
    results: Results = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the comparison as JSON.")] = False,
) -> None:
    """Print results beside the published ones."""
    from avcg.bench.page import published
    from avcg.bench.protocol import read_protocol
    from avcg.bench.tables import compare, print_comparison

    records = compare(_rows(protocol, results), published(read_protocol(protocol), protocol))
    if as_json:
        lines = [{key: _plain(value) for key, value in record.items()} for record in records.to_dict("records")]
        typer.echo(json.dumps(lines, indent=1))
    else:
        print_comparison(console(), records)


@bench_app.command("plot")
def plot_results(
    protocol: File,
    results: Results = None,
    out: Annotated[
        str | None, typer.Option(metavar="DIR", help="Folder of the figures (default: that of the results).")
    ] = None,
) -> None:
    """Draw results as figures.

    They show metrics by epsilon for a protocol with several, images for one of images, and otherwise survival against
    distance.
    """
    from avcg.bench.figures import plot_image_grid, plot_sweep, plot_tradeoff
    from avcg.bench.protocol import read_protocol
    from avcg.bench.store import Store
    from avcg.metrics.table import PAPER_METRICS

    rows, folder = _rows(protocol, results), Path(out or _folder(protocol, results))
    parsed = read_protocol(protocol)
    folder.mkdir(parents=True, exist_ok=True)
    if len(parsed.epsilons) > 2:
        names = [name for name in (*PAPER_METRICS, "L2", "gap") if name != "Time" and (name in rows or name == "RVR")]
        paths = [
            plot_sweep(rows, names, folder / f"{method.name}.png", method=method.name)
            for method in parsed.methods
            if method.hypotheses.by_epsilon(parsed.folder)
        ]
    elif parsed.reading == "images":
        stored = Store(_folder(protocol, results)).pictures()
        paths = [
            plot_image_grid(before, after, titles, folder / f"{name}.png", heading)
            for name, heading, before, after, titles in stored
        ]
    else:
        paths = [plot_tradeoff(rows, folder / "tradeoff.png", epsilon=max(parsed.epsilons, default=None))]
    for path in paths:
        typer.echo(str(path))


@bench_app.command("page")
def write_page(
    page: Annotated[str, typer.Argument(metavar="PAGE", help="A Markdown file with generated blocks.")],
    check: Annotated[bool, typer.Option("--check", help="Only check whether the page is up to date.")] = False,
) -> None:
    """Write the tables of a Markdown page from stored results."""
    from avcg.bench.page import filled

    path = Path(page)
    before = path.read_text()
    after = filled(before, path.parent)
    if check and before != after:
        raise DataError(f"{page} is out of date. Run: avcg bench page {page}")
    if not check:
        path.write_text(after)


def _folder(protocol: str, results: str | None) -> Path:
    from avcg.bench.protocol import read_protocol

    return Path(results) if results else Path(protocol).parent / "results" / read_protocol(protocol).name


def _rows(protocol: str, results: str | None) -> pd.DataFrame:
    from avcg.bench.store import Store

    return Store(_folder(protocol, results)).rows()


def _plain(value: Any) -> Any:
    """The value, or None for NaN, which JSON does not have."""
    return None if isinstance(value, float) and math.isnan(value) else value
