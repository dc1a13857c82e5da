"""Columns that are computed from others."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch

from avcg import Schema, TabularSpace
from avcg.errors import DataError
from avcg.testing import check_space

RNG = np.random.default_rng(0)
FRAME = pd.DataFrame(
    {
        "debt": np.round(RNG.uniform(0, 900, 40), 2),
        "income": np.round(RNG.uniform(100, 900, 40), 2),
        "job": RNG.choice(["clerk", "nurse"], 40),
    }
).assign(dti=lambda f: f["debt"] / f["income"])
SCHEMA = Schema.infer(FRAME).derive("dti", "debt / income")


def answers_of(space, rows, seed=0, scale=1.0):
    x = space.encode(rows)
    raw = x + scale * torch.randn(x.shape, generator=torch.Generator().manual_seed(seed))
    return space.decode(space.project(raw, x), like=rows)


def test_it_is_computed_in_the_units_of_the_user():
    space = TabularSpace.fit(SCHEMA, FRAME)
    answers = answers_of(space, FRAME, scale=0.3)
    moved = (answers[["debt", "income"]] != FRAME[["debt", "income"]]).any(axis=1)
    assert moved.mean() > 0.9
    assert (answers["dti"] == answers["debt"] / answers["income"]).all()  # to the last digit


def test_it_costs_nothing_and_counts_for_nothing():
    space = TabularSpace.fit(SCHEMA.at_most(1), FRAME)
    x = space.encode(FRAME)
    x_cf = space.project(x + 0.5, x)
    moved = space.decode(x_cf, like=FRAME) != FRAME
    assert moved["dti"].any()
    assert (moved[["debt", "income", "job"]].sum(axis=1) <= 1).all()
    assert torch.equal(space.count_changes(x_cf, x), (x_cf != x)[:, [0, 1, 2]].sum(dim=1).float())
    price = (x_cf - x).abs()[:, :2].sum(dim=1) + (x_cf != x)[:, 2].float()
    assert torch.allclose(space.distance(x_cf, x), price)


def test_it_is_never_changed_by_itself():
    space = TabularSpace.fit(SCHEMA, FRAME)
    x = space.encode(FRAME)
    wanted = x.clone()
    wanted[:, space.encoding.number_at[2]] += 1.0
    assert torch.equal(space.project(wanted, x), x)
    broken = space.violations(FRAME.assign(dti=1.0), FRAME)
    assert broken[:, 3].all()
    moves = space.codes.alternatives(x.numpy(), x.numpy(), 0.5)
    assert set(moves.units.tolist()) == {0, 1, 2}


def test_a_range_is_kept():
    space = TabularSpace.fit(SCHEMA.between("dti", high=1.0), FRAME)
    answers = answers_of(space, FRAME)
    moved = (answers["dti"] != FRAME["dti"]).to_numpy()
    assert moved.any()
    # What is above the range already may only fall.
    assert (answers["dti"] <= np.maximum(FRAME["dti"], 1.0) + 1e-12).all()
    narrow = space.restrict(ranges={"dti": (0, 0.5)})
    assert (answers_of(narrow, FRAME)["dti"] <= np.maximum(FRAME["dti"], 0.5) + 1e-12).all()


def test_steps_chains_and_extremes():
    frame = FRAME.assign(
        share=lambda f: np.round(f["dti"] * 100).astype(int),
        worst=lambda f: np.maximum(np.round(f["dti"] * 100), 50),
    )
    schema = (
        Schema.infer(frame)
        .derive("worst", "max(share, 50)")
        .derive("share", "100 * dti")
        .derive("dti", "debt / income")
    )
    space = TabularSpace.fit(schema, frame)
    answers = answers_of(space, frame, scale=0.3)
    assert (answers["share"] == np.rint(100 * (answers["debt"] / answers["income"]))).all()
    assert (answers["worst"] == np.maximum(answers["share"], 50)).all()
    assert (answers["share"] != frame["share"]).mean() > 0.8
    check_space(space, frame.head(10))


def test_an_answer_that_divides_by_zero_is_not_allowed():
    frame = pd.DataFrame({"a": [1, 2, 3, 4], "b": [1, 2, -1, -2]}).assign(ratio=lambda f: f["a"] / f["b"])
    space = TabularSpace.fit(Schema.infer(frame).derive("ratio", "a / b"), frame)
    x = space.encode(frame)
    x_cf = space.project(space.encode(frame.assign(b=0)), x)
    assert torch.equal(x_cf, x)
    assert space.violations(frame.assign(b=0), frame).any(axis=1).all()


def test_a_missing_input():
    frame = FRAME.copy()
    frame.loc[:9, "debt"] = np.nan
    frame["dti"] = frame["debt"] / frame["income"]
    space = TabularSpace.fit(SCHEMA.allow_missing("debt", "dti"), frame)
    answers = answers_of(space, frame, scale=0.5)
    present = answers["debt"].notna()
    assert (present[:10]).any()
    assert (answers["dti"][present] == answers["debt"][present] / answers["income"][present]).all()
    assert answers["dti"][~present].isna().all()
    assert (answers["income"] != frame["income"])[~present].any()
    assert not space.violations(answers, frame).any()
    check_space(space, frame.head(20))


def test_training_rows_must_obey():
    wrong = FRAME.assign(dti=FRAME["dti"].where(FRAME.index != 3, 0.7))
    with pytest.raises(DataError, match=r"'dti' is not 'debt / income' in 1 of 40 .* position 3: .* but 'dti' = 0\.7"):
        TabularSpace.fit(SCHEMA, wrong)
    with pytest.raises(DataError, match="'dti' is not"):
        TabularSpace.fit(Schema.infer(FRAME), FRAME).narrowed(SCHEMA, wrong)
    TabularSpace.fit(SCHEMA, FRAME.assign(dti=FRAME["dti"] * (1 + 5e-7)))
    rounded = FRAME.assign(dti=FRAME["dti"].round(2))
    TabularSpace.fit(SCHEMA.step("dti", 0.01), rounded)


def test_a_row_that_is_inconsistent_may_stay():
    space = TabularSpace.fit(SCHEMA, FRAME)
    odd = FRAME.assign(dti=0.7)
    x = space.encode(odd)
    assert torch.equal(space.project(x, x), x)
    assert not space.violations(odd, odd).any()
    answers = answers_of(space, odd, scale=0.3)
    moved = (answers[["debt", "income"]] != odd[["debt", "income"]]).any(axis=1)
    assert (answers["dti"] == answers["debt"] / answers["income"])[moved].all()
    assert (answers["dti"] == 0.7)[~moved].all()


def test_relaxation_computes_it_with_gradients():
    space = TabularSpace.fit(SCHEMA, FRAME)
    x = space.encode(FRAME)
    raw = (x + 0.1).requires_grad_()
    relaxed = space.relax(raw, x)
    numbers = space.encoding.unscaled(relaxed.detach().numpy()[:, space.encoding.number_at])
    inside = numbers[:, 2] < FRAME["dti"].max() - 1e-3
    assert np.allclose(numbers[inside, 2], (numbers[:, 0] / numbers[:, 1])[inside], rtol=1e-4)
    (gradient,) = torch.autograd.grad(relaxed[:, space.encoding.number_at[2]].sum(), raw)
    assert torch.isfinite(gradient).all()
    assert (gradient[:, space.encoding.number_at[0]] > 0).sum() > 30
    assert (gradient[:, space.encoding.number_at[1]] < 0).sum() > 30


@pytest.mark.parametrize(
    "make", [lambda f: f.astype({"debt": "float32", "income": "float32", "dti": "float32"}), pl.from_pandas]
)
def test_other_frames(make):
    rows = make(FRAME)
    space = TabularSpace.fit(SCHEMA, rows)
    answers = answers_of(space, rows, scale=0.3)
    assert not space.violations(answers, rows).any()
    debt, income, dti = (np.asarray(answers[name], float) for name in ("debt", "income", "dti"))
    assert np.allclose(dti, debt / income, rtol=1e-6)


def test_numbers_go_a_part_of_their_way_where_all_of_it_leads_out_of_the_range():
    space = TabularSpace.fit(SCHEMA.between("dti", 0.2, 1.5), FRAME)
    inside = FRAME[FRAME["dti"].between(0.2, 1.5)].reset_index(drop=True)
    wanted = inside.assign(income=100.0)
    x = space.encode(inside)
    answers = space.decode(space.project(space.encode(wanted), x), like=inside)
    leads_out = wanted["debt"] / wanted["income"] > 1.5
    assert leads_out.any()
    assert (answers["income"] < inside["income"])[leads_out].mean() > 0.5
    assert answers["dti"].between(0.2, 1.5).all()


def test_a_derived_column_is_not_moved_by_itself_where_all_others_may_move():
    space = TabularSpace.fit(SCHEMA, FRAME)
    movable = dict(zip(SCHEMA.names, space.feasible.movable(space.encoding)[0].tolist(), strict=True))
    assert movable == {"debt": True, "income": True, "job": True, "dti": False}
