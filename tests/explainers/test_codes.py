"""A credit table with codes for "not applicable" and amounts with two decimals, asked about from end to end."""

import io
import warnings

import numpy as np
import pandas as pd
import pytest

from avcg import AVCG, Classifier, Recipe, Schema, load, retrains

N, CODES = 320, (-9, -8, -7)


def credit():
    rng = np.random.default_rng(0)
    months = rng.integers(0, 120, N)
    income = np.round(rng.lognormal(4, 0.4, N), 2)
    y = (income / 60 + months / 80 + rng.normal(0, 0.2, N) > 1.6).astype(int)
    X = pd.DataFrame({"months": np.where(rng.random(N) < 0.25, rng.choice(CODES, N), months), "income": income})
    return X.assign(job=rng.choice(["clerk", "nurse"], N)), y


@pytest.fixture(scope="module", params=["kept", "left"])
def answered(request, tmp_path_factory):
    X, y = credit()
    schema = Schema.infer(X)
    assert schema["months"].codes == CODES
    schema = schema.leave("months", -9) if request.param == "left" else schema
    model = Classifier(hidden=(16,), epochs=40, patience=None, schema=schema).fit(X, y)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        recipe = Recipe(steps=120, layers=(32, 32), batch_size=64)
        explainer = AVCG(retrains(model, X, y, n=6, resampling="bootstrap"), recipe=recipe).fit(X)
    path = tmp_path_factory.mktemp("codes") / "art"
    explainer.save(path, graphs=True)
    rows = X[explainer.decide(X) == 0].head(80)
    return request.param, X, rows, explainer.generate(rows, 1), path


def test_no_answer_invents_a_value_that_is_no_number(answered):
    how, X, rows, answers, _ = answered
    before, after = rows["months"], answers.answers["months"]
    changed = (before != after).to_numpy()
    assert changed.any()
    assert (after[changed] >= X["months"][X["months"] >= 0].min()).all(), "the values from -1 to -6 occur nowhere"
    left = before[changed & before.isin(CODES).to_numpy()]
    assert set(left) <= ({-9} if how == "left" else set())
    assert how == "kept" or len(left), "some rows leave the code that they may leave"
    assert (answers.statuses == "ok").any()


def test_amounts_keep_their_decimals(answered):
    _, _, rows, answers, _ = answered
    changed = answers.answers["income"] != rows["income"]
    assert changed.any()
    written = answers.answers.to_csv(index=False)
    cells = pd.read_csv(io.StringIO(written), dtype=str)["income"]
    assert cells.str.fullmatch(r"\d+(\.\d{1,2})?").all()


def test_a_stored_explainer_and_the_light_scorer_say_the_same(answered):
    pytest.importorskip("onnxruntime")
    from avcg.io.scorer import Scorer

    _, _, rows, answers, path = answered
    pd.testing.assert_frame_equal(load(path).generate(rows, 1).answers, answers.answers)
    pairs = zip(rows.to_dict("records"), answers.answers.to_dict("records"), strict=True)
    changes = [{name: (row[name], new[name]) for name in row if row[name] != new[name]} for row, new in pairs]
    assert [dict(row.changes) for row in Scorer(path).answer(rows.to_dict("records"), 1)] == changes
