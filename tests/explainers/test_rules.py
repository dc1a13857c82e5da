"""Rules between columns from the schema to the answers: explainer, stored explainer and light scorer."""

import warnings

import numpy as np
import pandas as pd
import pytest
from ruled_loans import RULES, counted, faults, loans

from avcg import AVCG, Classifier, Recipe, Schema, load, retrains
from avcg.io.scorer import Scorer

pytest.importorskip("onnxruntime")

NAMES = ["total", "afford", "dti", "own", "deposit"]
FRAME = loans(250).drop(columns=["left", "burden"])
LABELS = np.where(FRAME["dti"] + FRAME["total"] / FRAME["income"] < 1.0, "yes", "no")
DENIED = FRAME[LABELS == "no"].head(40)
ASKED = [{"effort": effort, "n": n} for effort in ("fast", "standard") for n in (1, 3)]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ruled")
    ruled = Schema.infer(FRAME).step("other costs", 0.1).step("total", 0.1)
    for name in NAMES:
        ruled = RULES[name].add(ruled)
    model = Classifier(hidden=(16,), epochs=20, patience=None, schema=ruled).fit(FRAME, LABELS)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        hypotheses = retrains(model, FRAME, LABELS, n=4, resampling="bootstrap")
        explainer = AVCG(hypotheses, recipe=Recipe(steps=60, layers=(24,), batch_size=64)).fit(FRAME)
    explainer.save(folder, graphs=True)
    return folder


@pytest.fixture(scope="module")
def explainer(folder):
    return load(folder)


def asked_for(explainer, asked):
    answers = explainer.generate(DENIED, "yes", **asked)
    return answers, DENIED.iloc[np.repeat(np.arange(len(DENIED)), asked["n"])].reset_index(drop=True)


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_answers_obey_the_rules(explainer, asked):
    answers, before = asked_for(explainer, asked)
    after = answers.frame.reset_index(drop=True)[before.columns]
    assert not faults(NAMES, after, before)
    assert not explainer.space_.violations(after, before).any()
    statuses = np.array([option.status for row in answers for option in row.options])
    refused = statuses != "already_target"
    assert refused.sum() >= 10
    assert (counted(NAMES, after, before) > 0)[refused].mean() > 0.8
    assert np.isin(statuses, ["ok", "not_robust"])[refused].mean() > 0.8


@pytest.mark.parametrize("asked", ASKED, ids=str)
def test_the_scorer_answers_alike(folder, explainer, asked):
    rows = DENIED.astype(object).to_dict("records")
    found, wanted = Scorer(folder).answer(rows, "yes", **asked), list(explainer.generate(DENIED, "yes", **asked))
    for one, other in zip(found, wanted, strict=True):
        for mine, theirs in zip(one.options, other.options, strict=True):
            assert (mine.status, list(mine.changes)) == (theirs.status, list(theirs.changes))
            for name, (_, after) in mine.changes.items():
                expected = theirs.changes[name][1]
                assert after == (expected if isinstance(expected, str) else pytest.approx(expected, rel=1e-6))


def test_requests_and_rules_hold_together(explainer):
    answers = explainer.generate(DENIED, "yes", vary=["food", "other costs", "debt", "total"], max_changes=3)
    after, before = answers.frame.reset_index(drop=True)[DENIED.columns], DENIED.reset_index(drop=True)
    assert not faults(NAMES, after, before)
    assert counted(NAMES, after, before).max() <= 3
    fixed = ["income", "rent", "housing", "deposit"]
    pd.testing.assert_frame_equal(after[fixed], before[fixed])
