"""Answers made better than one pass can: refining, refitting, and what a single pass gives away."""

import copy
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from explained_loans import TOY, denied, loan_model, loan_retrains

import avcg
from avcg import AVCG, Recipe, retrains
from avcg.method.acceptance import Acceptance
from avcg.method.config import SearchConfig
from avcg.method.query import EFFORTS, Query
from avcg.method.refine import Refiner
from avcg.models.decision import DecisionRule


def at_one_margin(recourse):
    """The explainer with one margin for all efforts, as where a promise is made."""
    alike, fast = copy.copy(recourse), recourse.calibration_.directions["fast"]
    alike.calibration_ = replace(recourse.calibration_, directions=dict.fromkeys(EFFORTS, fast))
    return alike


class TestRefining:
    def test_answers_get_no_dearer_and_stay_accepted(self, recourse):
        alike = at_one_margin(recourse)
        first, refined = (alike.generate(denied(), effort=effort, typicality=0.0) for effort in ("fast", "standard"))
        assert (refined.distance <= first.distance + 1e-5).all()
        assert refined.distance.mean() < first.distance.mean()
        assert (refined.status == "not_found").sum() <= (first.status == "not_found").sum()
        assert not recourse.space_.violations(refined.frame, denied()).any()

    def test_no_step_begins_after_the_budget(self, recourse):
        alike = at_one_margin(recourse)
        first = recourse.generate(denied(), effort="fast")
        assert alike.generate(denied(), time_budget=1e-9).frame.equals(first.frame)
        assert not alike.generate(denied(), time_budget=60.0).frame.equals(first.frame)
        assert recourse.generate(denied(), effort="fast", time_budget=60.0).frame.equals(first.frame)

    def test_thorough_answers_are_no_dearer(self, recourse):
        alike = at_one_margin(recourse)
        answers = (alike.generate(denied(), effort=effort, typicality=0.0) for effort in ("standard", "thorough"))
        standard, thorough = answers
        assert (thorough.distance <= standard.distance + 1e-5).all()

    def test_refining_finds_the_least_on_a_line(self):
        frame = pd.DataFrame({"x0": np.linspace(-2, 2, 50), "x1": np.linspace(2, -2, 50)})
        space = avcg.TabularSpace.fit(avcg.Schema.infer(frame), frame)

        def judge(points):  # one model, which accepts from 0.5 in the first column on
            accepts = 1 / (1 + np.exp(-20.0 * (points[:, 0].astype(np.float64) - 0.5)))
            return np.stack([1 - accepts, accepts], axis=-1)[None]

        acceptance = Acceptance(judge, np.ones(1), np.ones(1), DecisionRule(), survival=1.0, spread=2.0)
        far = np.array([[1.5, 1.5], [1.0, 0.0], [0.0, 0.7]], np.float32)
        query = Query(np.zeros((3, 2), np.float32), np.ones(3, np.intp), space.codes)
        found = Refiner(acceptance).refined(query, far, np.zeros(3, np.float32), SearchConfig().steps)
        assert (found[:, 1] == 0).all(), "what is not needed is undone"
        assert (found[:, 0] >= 0.5).all(), "an answer that was rejected is accepted now, no other is lost"
        assert (found[:2, 0] < 0.7).all()

    def test_the_gap_is_what_a_better_posterior_would_gain(self):
        smooth = Recipe(steps=200, decoder="latent", layers=(32,), risk=avcg.risk.expected_log_likelihood,
                        temperature=None, weights=avcg.Weights())  # fmt: skip
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            paper = AVCG(loan_retrains(), recipe=smooth).fit(TOY.X)
        gaps = paper.amortization_gap(denied().head(10), steps=60, n_latents=300)
        assert gaps.index.equals(denied().head(10).index)
        np.testing.assert_allclose(gaps["gap"], gaps["encoder"] - gaps["refined"], atol=1e-6)
        assert gaps["gap"].mean() > 0, "a posterior of one's own is better than the encoder's"

    @pytest.mark.parametrize("only_encoder", [False, True])
    def test_refit_goes_on_from_where_it_was(self, recourse, only_encoder):
        newer = retrains(loan_model(), TOY.X, TOY.y, n=8, resampling="bootstrap", random_state=5)
        before = {name: value.clone() for name, value in recourse.generator_.state_dict().items()}
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            renewed = recourse.refit(newer, TOY.X, steps=40, only_encoder=only_encoder)
        assert all(torch.equal(before[name], value) for name, value in recourse.generator_.state_dict().items())
        moved = {
            name for name, value in renewed.generator_.state_dict().items() if not torch.equal(value, before[name])
        }
        assert any(name.startswith("encoder") for name in moved)
        assert any(name.startswith("decoder") for name in moved) is not only_encoder
        assert (renewed.generate(denied()).status != "not_found").mean() > 0.8


class TestRefinedAlone:
    def test_refined_answers_do_not_depend_on_their_place(self, recourse):
        whole = recourse.space_.encode(recourse.generate(denied().head(6)).frame)
        turned = recourse.space_.encode(recourse.generate(denied().head(6).iloc[::-1]).frame)
        assert torch.allclose(whole, turned.flip(0), atol=1e-5)
        gaps = recourse.amortization_gap(denied().head(6), steps=5)["gap"]
        again = recourse.amortization_gap(denied().head(6).iloc[::-1], steps=5)["gap"]
        assert np.allclose(gaps, again[::-1], atol=1e-4)
