"""How cost grows: with rows, hypotheses and answers; and a million rows from file to file."""

from __future__ import annotations

import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from avcg import datasets, load
from avcg.guarantees.certificate import certify
from avcg.hypotheses.predictors import Stacked
from avcg.models.networks import draw_state, mlp
from speeds.timing import adult_artifact, median_seconds


def scale(repeats: int, folder: str | None, picture: str | None) -> None:
    """Seconds over three decades of rows, hypotheses and answers, and the exponent of each; on one thread."""
    torch.set_num_threads(1)
    explainer, data = load(adult_artifact(folder)), datasets.load("adult")
    rng = np.random.default_rng(0)
    X = data.X.iloc[rng.integers(0, len(data), 300_000)].reset_index(drop=True)
    x = explainer.space_.encode(X.iloc[:1000])
    wanted = torch.ones(len(x), dtype=torch.long)
    network = mlp(x.shape[1], 2, (64, 64))

    def with_models(count: int) -> Callable[[], object]:
        models = Stacked(network, draw_state(network, count, torch.Generator().manual_seed(0)))
        return lambda: certify(models, x, wanted)

    works: dict[str, dict[int, Callable[[], object]]] = {
        "rows": {
            n: lambda n=n: explainer.generate(X.iloc[:n], ">50K", effort="fast") for n in (300, 3000, 30_000, 300_000)
        },
        "hypotheses": {s: with_models(s) for s in (10, 100, 1000, 10_000)},
        "answers": {n: lambda n=n: explainer.generate(X.iloc[:10], n=n, effort="fast") for n in (1, 10, 100, 1000)},
    }
    found = {what: _seconds(sizes, repeats) for what, sizes in works.items()}
    table = Table("what", "how many", "seconds", "exponent of the last decade", title="How cost grows on Adult")
    for what, times in found.items():
        last = list(times)[-2:]
        exponent = np.log10(times[last[1]] / times[last[0]]) / np.log10(last[1] / last[0])
        slope = np.polyfit(np.log10(list(times)), np.log10(list(times.values())), 1)[0]
        for n, seconds in times.items():
            table.add_row(what, f"{n:,}", f"{seconds:.3g}", f"{exponent:.2f}, all {slope:.2f}" if n == last[1] else "")
    Console(width=120).print(table)
    print("asked: exponents of at most 1.1")
    if picture is not None:
        _draw(found, Path(picture))


def _seconds(sizes: Mapping[int, Callable[[], object]], repeats: int) -> dict[int, float]:
    return {n: median_seconds(work, repeats if n < max(sizes) else 1) for n, work in sizes.items()}


def _draw(found: Mapping[str, Mapping[int, float]], place: Path) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3), layout="constrained")
    FigureCanvasAgg(figure)
    titles = {
        "rows": "Rows, frame to frame with certificate",
        "hypotheses": "Hypotheses, certificates of 1,000 answers",
        "answers": "Answers for each of 10 rows",
    }
    for axes, (what, times) in zip(figure.subplots(1, len(found)), found.items(), strict=True):
        sizes, seconds = np.array(list(times)), np.array(list(times.values()))
        axes.loglog(sizes, seconds, "o-", color="#0072b2", label="measured")
        axes.loglog(sizes, seconds[-1] * sizes / sizes[-1], "--", color="#767676", label="proportional")
        axes.set(title=titles[what], xlabel=what, ylabel="seconds")
        axes.title.set_fontsize(9)
        axes.grid(alpha=0.3)
        axes.legend(frameon=False, fontsize=8)
    figure.savefig(place, dpi=150)
    print(f"Drawn in {place}.")


_ON_RAY = """
import sys, ray
from avcg.scale import BatchOptions, explain_ray
ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False)
ray.data.DataContext.get_current().enable_progress_bars = False
rows = ray.data.read_parquet(sys.argv[1])
explain_ray(rows, sys.argv[2], BatchOptions(target=">50K", only_denied=False)).write_parquet(sys.argv[3])
"""
_ON_SPARK = """
import os, sys
os.environ["PYSPARK_PYTHON"] = sys.executable
from pyspark.sql import SparkSession
from avcg.scale import BatchOptions, explain_spark
spark = SparkSession.builder.master("local[2]").config("spark.ui.enabled", False).config("spark.driver.memory", "2g")
spark = spark.config("spark.sql.execution.arrow.maxRecordsPerBatch", 10000).getOrCreate()
spark.sparkContext.setLogLevel("ERROR")
rows = spark.read.parquet(sys.argv[1]).repartition(8)
explain_spark(rows, sys.argv[2], BatchOptions(target=">50K", only_denied=False)).write.parquet(sys.argv[3])
"""


def stream(rows: int, folder: str | None) -> None:
    """Bootstrapped rows of Adult from Parquet to Parquet: ``avcg explain``, then Ray Data and Spark in local mode."""
    import pyarrow.parquet as pq

    place, data = str(adult_artifact(folder)), datasets.load("adult")
    chosen = np.random.default_rng(0).integers(0, len(data), rows)
    with tempfile.TemporaryDirectory() as made:
        source = Path(made) / "rows.parquet"
        frame = data.X.iloc[chosen].reset_index(drop=True)
        frame.insert(0, "id", np.arange(rows))
        frame.to_parquet(source, index=False, row_group_size=50_000)
        del frame
        delivered = None
        explain = ["-m", "avcg", "explain", place, str(source), "--all", "--target", ">50K", "--out"]
        for name, arguments in {
            "avcg explain": [*explain, "OUT", "--workers", "1"],
            "avcg explain, 2 workers": [*explain, "OUT", "--workers", "2"],
            "Ray Data": ["-c", _ON_RAY, str(source), place, "OUT"],
            "Spark": ["-c", _ON_SPARK, str(source), place, "OUT"],
        }.items():
            out = str(Path(made) / f"{name}.parquet")
            seconds, spent, most = _watched([one if one != "OUT" else out for one in arguments])
            found = pq.read_table(out).sort_by("id")
            found = found.drop_columns([one for one in ("row",) if one in found.column_names])
            delivered = delivered or found
            same = found.select(delivered.column_names).cast(delivered.schema).equals(delivered)
            whole = np.array_equal(found["id"].to_numpy(), np.arange(rows))
            # Engines leave processes behind them, whose time cannot be read off.
            each = f", {1e6 * spent / rows:.0f} µs of processor a row" if name.startswith("avcg") else ""
            print(
                f"{rows:,} rows, {name}: {seconds:.0f} s{each}, at most {most / 2**30:.2f} GiB; every row once:"
                f" {whole}; answers as by avcg explain: {same}",
                flush=True,
            )
    print("asked: at most 2 GiB for avcg explain, no row lost, the same answers everywhere")


def _watched(arguments: list[str]) -> tuple[float, float, int]:
    """Run Python; seconds, seconds of processor, and the most bytes that it and its children held at once."""
    before, started = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    process = subprocess.Popen([sys.executable, *arguments], stdout=subprocess.DEVNULL)
    most = _peak_of_tree(process)
    if process.returncode:
        raise RuntimeError(f"{arguments[:4]} ended with {process.returncode}.")
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    spent = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
    return time.perf_counter() - started, spent, most


def _peak_of_tree(process: subprocess.Popen[bytes]) -> int:
    """The most bytes that a process and its children held at once, by what is theirs alone and shares of the rest."""
    most = 0
    while process.poll() is None:
        total = 0
        for one in _tree(process.pid):
            try:
                lines = Path(f"/proc/{one}/smaps_rollup").read_text().splitlines()
            except OSError:  # gone in the meantime
                continue
            total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
        most = max(most, total)
        time.sleep(0.2)
    return most


def _tree(pid: int) -> list[int]:
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except OSError:
        return []
    return [pid, *(one for child in children for one in _tree(int(child)))]
