"""Whoever pulls the plug while something is written finds the old or the new, and never half of it."""

import json
import os
import signal
import subprocess
import sys
import time

import numpy as np
import pandas as pd
import pytest
from command_line import FIT, people, run

import avcg
from avcg.io.artifact import about

KILLS = 25  # of each kind
pytestmark = pytest.mark.skipif(not hasattr(os, "fork"), reason="processes are forked to be killed")

# Loads everything once, then does what it is told in children of its own, which are the ones that are killed.
NURSERY = """
import json, os, signal, sys, time
import avcg, avcg.explainers.avcg
from avcg.batch import answerer
from avcg.cli.main import main
from avcg.io.artifact import load

answerer.MAX_GROUP_ROWS = 50
for line in sys.stdin:
    order = json.loads(line)
    at_work, say = os.pipe()
    child = os.fork()
    if child == 0:
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        try:
            if "argv" in order:
                os.write(say, b".")
                sys.argv[1:] = order["argv"]
                main()
            explainer = load(order["from"])
            for turn in range(10_000):
                explainer.random_state = turn
                explainer.save(order["to"], about={"turn": turn})
                if turn == 0:  # from here on, whatever is interrupted is a save
                    os.write(say, b".")
        finally:
            os._exit(0)
    os.close(say)
    os.read(at_work, 1)
    os.close(at_work)
    if order["after"] is not None:
        time.sleep(order["after"])
        os.kill(child, signal.SIGKILL)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
"""


class Nursery:
    def __init__(self):
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "MKL_NUM_THREADS": "1"}  # threads do not survive a fork
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL}
        self.process = subprocess.Popen(
            [sys.executable, "-c", NURSERY], text=True, env=environment, start_new_session=True, **pipes
        )

    def killed(self, order, after):
        """Whether the child was still at work when it was killed; None after: it is left in peace."""
        self.process.stdin.write(json.dumps({**order, "after": after}) + "\n")
        self.process.stdin.flush()
        return int(self.process.stdout.readline()) == -signal.SIGKILL


@pytest.fixture(scope="module")
def nursery():
    nursery = Nursery()
    yield nursery
    os.killpg(nursery.process.pid, signal.SIGKILL)  # with whatever a failed test has left at work
    nursery.process.communicate()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("interrupted")
    people(120).to_csv(folder / "data.csv", index=False)
    done = run("fit", folder / "data.csv", *FIT, "--hypotheses", 3, "--steps", 2, "--out", folder / "art")
    assert done.code == 0, done.err
    people(250, seed=5).drop(columns="approved").to_csv(folder / "rows.csv", index=False)
    return folder


def test_answers_are_whole_or_as_they_were(folder, nursery):
    rng, orders, whole, took = np.random.default_rng(0), {}, {}, {}
    for kind in ("csv", "parquet", "json"):
        out = folder / f"answers.{kind}"
        options = [folder / "rows.csv", "--chunk", 50, "--out", out]
        orders[kind] = {"argv": ["explain", *map(str, [folder / "art", *options])]}
        nursery.killed(orders[kind], None)  # the first of a kind also loads what it needs
        started = time.perf_counter()
        nursery.killed(orders[kind], None)
        took[kind], whole[kind] = time.perf_counter() - started, out.read_bytes()
    at_work = 0
    for turn in range(KILLS):
        kind = list(orders)[turn % 3]
        out, old = folder / f"answers.{kind}", b"as it was" if turn % 2 else None
        out.unlink(missing_ok=True)
        if old is not None:
            out.write_bytes(old)
        at_work += nursery.killed(orders[kind], rng.uniform(0.3, 1.1) * took[kind])
        found = out.read_bytes() if out.exists() else None
        assert found in (old, whole[kind]), f"{kind} was left with {len(found or b'')} of {len(whole[kind])} bytes"
    assert at_work >= KILLS // 5
    for kind in orders:  # what was left behind is in nobody's way
        assert not nursery.killed(orders[kind], None)
        assert (folder / f"answers.{kind}").read_bytes() == whole[kind]


def test_an_artifact_is_the_old_or_the_new(folder, nursery):
    rng, place = np.random.default_rng(1), folder / "saved"
    original = avcg.load(folder / "art")
    original.save(place, about={"turn": -1})
    rows = pd.read_csv(folder / "rows.csv", dtype={"zip": object}).drop(columns="id").head(5)
    rows = rows.astype({"member": object, "housing": object})
    delivered, turns = original.generate(rows, "yes").to_json(), set()
    started = time.perf_counter()
    original.save(folder / "another")
    took = time.perf_counter() - started  # as busy as the machine is now
    for _ in range(KILLS):
        order = {"from": str(folder / "art"), "to": str(place)}
        assert nursery.killed(order, rng.uniform(0.0, 3.0) * took)
        turn = about(place)["turn"]
        loaded = avcg.load(place)
        assert loaded.random_state == turn  # the notes and the rest are of the same save
        assert loaded.generate(rows, "yes").to_json() == delivered
        turns.add(turn)
    assert turns >= {0, 1}, "kills always or never came before the second save was done"
