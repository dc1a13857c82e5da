"""An explainer in a folder, files of rows, and the answers that everybody should give."""

import pytest
from command_line import FIT, people, run


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    pq = pytest.importorskip("pyarrow.parquet")
    from partitions import strangers

    folder = tmp_path_factory.mktemp("scale")
    people().to_csv(folder / "data.csv", index=False)
    done = run("fit", folder / "data.csv", *FIT, "--hypotheses", 8, "--steps", 20, "--out", folder / "art", "--seed", 1)
    assert done.code == 0, done.err
    pq.write_table(strangers(), folder / "rows.parquet", row_group_size=90)
    return folder


@pytest.fixture(autouse=True)
def here(folder, monkeypatch):
    monkeypatch.chdir(folder)


@pytest.fixture(scope="session")
def whole(folder):
    """The answers that everybody should give."""
    from partitions import WISH, strangers

    from avcg.batch import PartitionExplainer

    return PartitionExplainer(folder / "art", WISH)(strangers())
