"""Ray, Spark and Dask: the same answers and the same benchmarks as one process."""

import os
import random
import shutil
import sys
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from command_line import run
from partitions import MISTAKES, WISH, delivered, mortal, parts, strangers

from avcg.batch import engines, explain_ray, explain_spark
from avcg.bench import run as bench
from avcg.bench.store import Store
from avcg.errors import SettingError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyarrow.compute")


@pytest.fixture
def cleaned():
    """Engines draw from Python's and numpy's global streams, which is not our doing."""
    before, drawn = random.getstate(), np.random.get_state()  # noqa: NPY002
    yield
    random.setstate(before)
    np.random.set_state(drawn)  # noqa: NPY002


@pytest.fixture(scope="module")
def ray_at_hand():
    """Ray on this machine, as little of it as there can be."""
    ray = pytest.importorskip("ray")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        import ray.data

        ray.init("local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="ERROR")
        context = ray.data.DataContext.get_current()
        context.enable_progress_bars = False
        context.execution_options.preserve_order = True
    yield ray
    ray.shutdown()


def taken(dataset):
    return pa.concat_tables(list(dataset.iter_batches(batch_format="pyarrow", batch_size=None)))


@pytest.mark.usefixtures("cleaned")
@pytest.mark.filterwarnings("ignore")  # Ray's own
class TestRay:
    def test_same_answers_even_if_an_actor_is_killed(self, ray_at_hand, whole, tmp_path, monkeypatch):
        monkeypatch.setattr(engines, "PartitionExplainer", mortal(tmp_path / "killed"))
        rows = ray_at_hand.data.from_arrow(parts(strangers()))
        found = taken(explain_ray(rows, "art", WISH, workers=2, batch_size=50))
        assert (tmp_path / "killed-0").exists()
        assert delivered(found) == delivered(whole)

    def test_mistakes(self, ray_at_hand):
        for artifact, options, wrong, error, says in MISTAKES[2:]:
            with pytest.raises(error, match=says):
                explain_ray(ray_at_hand.data.from_arrow(wrong()), artifact, options)
        with pytest.raises(SettingError, match=r"must be a ray.data.Dataset. Got a Table"):
            explain_ray(strangers(3), "art")


@pytest.fixture(scope="module")
def spark():
    """Spark on this machine: one executor, which may fail once."""
    sql = pytest.importorskip("pyspark.sql")
    if shutil.which("java") is None and "JAVA_HOME" not in os.environ:
        pytest.skip("Spark needs a Java runtime, which is not installed (Debian: openjdk-17-jre-headless)")
    settings = {
        "spark.ui.enabled": "false", "spark.ui.showConsoleProgress": "false", "spark.log.level": "OFF",
        "spark.driver.host": "127.0.0.1", "spark.driver.bindAddress": "127.0.0.1", "spark.sql.shuffle.partitions": "3",
        "spark.sql.execution.arrow.maxRecordsPerBatch": "50",
    }  # fmt: skip
    with pytest.MonkeyPatch.context() as environment, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        environment.setenv("PYSPARK_PYTHON", sys.executable)
        builder = sql.SparkSession.builder.master("local[1,2]")
        for name, value in settings.items():
            builder = builder.config(name, value)
        session = builder.getOrCreate()
    yield session
    session.stop()


@pytest.mark.usefixtures("cleaned")
@pytest.mark.filterwarnings("ignore")  # Spark's own
class TestSpark:
    def test_same_answers_even_if_a_worker_is_killed(self, spark, whole, tmp_path, monkeypatch):
        monkeypatch.setattr(engines, "PartitionExplainer", mortal(tmp_path / "killed"))
        rows = spark.read.parquet(str(Path("rows.parquet").absolute())).repartition(3)
        out = explain_spark(rows, "art", WISH)
        assert out.columns == whole.column_names
        out.write.parquet(str(tmp_path / "out"))
        assert (tmp_path / "killed-0").exists()
        found = pq.read_table(tmp_path / "out")
        kinds = found.schema  # of its own types, which have no dictionaries
        ordered = [("id", "ascending"), ("answer", "ascending")]
        assert delivered(found.sort_by(ordered)) == delivered(whole.cast(kinds).sort_by(ordered))
        assert [str(kinds.field(name).type) for name in ("age", "income", "months")] == ["int16", "float", "int64"]

    def test_mistakes(self, spark):
        for artifact, options, wrong, error, says in MISTAKES[-2:]:
            with pytest.raises(error, match=says):
                explain_spark(spark.createDataFrame(wrong().cast(to_json(wrong()))), artifact, options)


def to_json(table):
    """Types that Spark takes from pyarrow."""
    return pa.schema([(f.name, pa.string() if pa.types.is_dictionary(f.type) else f.type) for f in table.schema])


TINY = """
title = "Tiny"
datasets = ["breast_cancer"]
seeds = [0, 1]
rows = 8
retrains = 2
[network]
hidden = [8]
epochs = 3
[judges]
surrogates = 2
masks = 5
candidates = 10
execution_errors = 2
autoencoder_epochs = 2
[[methods]]
name = "class mean"
kind = "avcg.baselines.nearest:ClassMean"
"""
TIMES = ["Time", "Time100", "TimeFrame"]


@pytest.fixture(scope="module")
def protocol(tmp_path_factory):
    path = tmp_path_factory.mktemp("bench") / "tiny.toml"
    path.write_text(TINY)
    return path


@pytest.fixture(scope="module")
def alone(protocol):
    return Store(bench.run(protocol, protocol.parent / "alone")).rows().drop(columns=TIMES)


class TestBenchmark:
    def compared(self, protocol, alone, backend):
        out = protocol.parent / backend
        bench.run(protocol, out, only_seeds=[1])  # what is there is not run again
        store = Store(bench.run(protocol, out, workers=2, backend=backend))
        workers = {name: about["workers"] for name, about in store.about().items()}
        assert set(workers.values()) == {1, 2}
        pd.testing.assert_frame_equal(store.rows().drop(columns=TIMES), alone)

    def test_on_joblibs_own_processes(self, protocol, alone):
        self.compared(protocol, alone, "loky")

    @pytest.mark.usefixtures("cleaned", "ray_at_hand")
    @pytest.mark.filterwarnings("ignore")
    def test_on_ray(self, protocol, alone):
        self.compared(protocol, alone, "ray")

    @pytest.mark.usefixtures("cleaned")
    @pytest.mark.filterwarnings("ignore")
    def test_on_dask(self, protocol, alone):
        pytest.importorskip("distributed")
        self.compared(protocol, alone, "dask")

    def test_mistakes(self, protocol):
        found = run("bench", "run", protocol, "--backend", "rai", "--results", protocol.parent / "none")
        assert found.code == 2
        assert "There is no backend 'rai'. Did you mean 'ray'?" in found.err

    def test_what_is_not_installed(self, protocol, monkeypatch):
        pytest.importorskip("dask")
        for name in [name for name in sys.modules if name.split(".")[0] == "distributed"]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.setitem(sys.modules, "distributed", None)
        found = run("bench", "run", protocol, "--backend", "dask", "--results", protocol.parent / "none")
        assert found.code == 2
        assert (
            "The backend 'dask' needs the package 'distributed'. Install it with: pip install 'avcg[dask]'" in found.err
        )
