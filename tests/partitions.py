"""People in partitions and files, to be answered by the million; and workers that are killed."""

import contextlib
import os
import signal
from itertools import pairwise

import pandas as pd
import pytest
from command_line import people, run

from avcg.batch import BatchOptions, PartitionExplainer
from avcg.errors import ArtifactError, AvcgError, DataError, SettingError

pa = pytest.importorskip("pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pytest.importorskip("pyarrow.compute")

ROWS = 260
CUTS = (0, 0, 1, 40, 41, 41, 170, ROWS)  # partitions of none and of one row among them
WISH = BatchOptions(vary=("income", "months", "housing", "owns"))
OPTIONS = ["--vary", "income,months,housing,owns"]
KINDS = {
    "age": pa.int16(), "income": pa.float32(), "months": pa.int64(), "owns": pa.bool_(), "member": pa.bool_(),
    "housing": pa.dictionary(pa.int8(), pa.string()), "zip": pa.large_string(), "remark": pa.string(),
    "when": pa.timestamp("us"), "id": pa.string(),
}  # fmt: skip


def strangers(n=ROWS):
    """People who were not in the data, under their ids, with gaps and with columns that nobody knows."""
    rows = people(n, seed=9).drop(columns="approved").set_index("id")
    rows = rows.assign(remark=[f"No. {i}" for i in range(n)], when=pd.Timestamp("2024-02-29 12:00"))
    return (
        pa.Table.from_pandas(rows)
        .cast(pa.schema(KINDS.items()))
        .replace_schema_metadata(pa.Table.from_pandas(rows).schema.metadata)
    )


def delivered(table):
    """Everything in a table, so that two of them are the same only if every bit of them is."""
    return repr(table.to_pylist()), [(field.name, str(field.type)) for field in table.schema]


def parts(table, cuts=CUTS):
    return [table.slice(start, stop - start) for start, stop in pairwise(cuts)]


def explained(name="rows.parquet", *options):
    """What `avcg explain` writes, without the places in the file."""
    found = run("explain", "art", name, *(options or OPTIONS), "--out", "by_command.parquet")
    assert found.code == 0, found.err
    return pq.read_table("by_command.parquet")


def mortal(place, times=1):
    """A class of explainers that are killed in the middle of their work, so many times in all."""
    alive, spot = os.getpid(), str(place)

    class Mortal(PartitionExplainer):  # local, so that it is sent to other processes as it stands
        def answerer(self):
            if os.getpid() != alive:
                for turn in range(times):
                    with contextlib.suppress(FileExistsError):
                        os.close(os.open(f"{spot}-{turn}", os.O_CREAT | os.O_EXCL))
                        os.kill(os.getpid(), signal.SIGKILL)
            return super().answerer()

    return Mortal


def strangers_without(name):
    return strangers(5).drop_columns(name)


def changed(name, values):
    return strangers(5).set_column(strangers().column_names.index(name), name, values)


MISTAKES = [
    ("nowhere", BatchOptions(), strangers, ArtifactError, "There is no folder 'nowhere'"),
    (None, BatchOptions(), strangers, SettingError, "'artifact' must be the path of a folder"),
    (
        "art",
        BatchOptions(target="maybe"),
        strangers,
        SettingError,
        "The 'target' of a query 'maybe' is not one of the outcomes",
    ),
    (
        "art",
        BatchOptions(vary=["incom"]),
        strangers,
        SettingError,
        "The 'vary' of a query names 'incom', which is not a column",
    ),
    ("art", BatchOptions(ranges={"income": (5, 1)}), strangers, AvcgError, "income"),
    ("art", BatchOptions(), lambda: strangers_without("income"), DataError, "has no column 'income'"),
    (
        "art",
        BatchOptions(),
        lambda: changed("income", pa.array(["a"] * 5)),
        DataError,
        "column 'income' is of type string",
    ),
]
