"""Rules of judging and refusing, pinned by what they let through rather than by how they are written."""

import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from scipy.special import ndtr
from torch import nn

from avcg import AVCG, Recipe, Schema, TabularSpace
from avcg.errors import SchemaError, SettingError
from avcg.guarantees.bounds import clopper_pearson
from avcg.guarantees.conformal import Promise, decide
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Stacked
from avcg.io.scorer import Scorer
from avcg.method.calibration import Calibration, judge_margins
from avcg.method.config import ReferenceConfig
from avcg.method.deployed import DeployedModel
from avcg.method.query import Query


def line_of_numbers(low=-8.0, high=8.0, n=200):
    """A table of one number, scaled so that codes are close to the numbers themselves."""
    frame = pd.DataFrame({"x": np.linspace(low, high, n)})
    return TabularSpace.fit(Schema.infer(frame), frame), frame


def steps(slope, offsets):
    """Models that say 1 where slope * x > offset, one for each offset, almost certain of it."""
    offsets = torch.as_tensor(offsets, dtype=torch.float32)
    zeros = torch.zeros(len(offsets))
    weights = torch.stack([zeros, torch.full_like(offsets, 50.0 * slope)], dim=1)[..., None]
    return Stacked(
        nn.utils.skip_init(nn.Linear, 1, 2), {"weight": weights, "bias": torch.stack([zeros, -50.0 * offsets], dim=1)}
    )


class TestCalibration:
    """Models whose truth is known: the share of all models that say 1 at x is the normal distribution function at x."""

    DRAWS = 120

    @staticmethod
    def judged(offsets, margins):
        """What models with these offsets say at each margin, where more margin means a larger x for everyone."""
        space, _ = line_of_numbers()
        query = Query(np.full((4, 1), -1.0, np.float32), np.ones(4, np.intp), space.codes)
        deployed = DeployedModel(steps(1.0, [-20.0]))  # always content, so that only the others are in question
        _, direction = judge_margins(
            margins, lambda margin: np.full((4, 1), margin, np.float32), query, deployed, steps(1.0, offsets), "01"
        )
        return direction.table

    def decided(self, offsets, promise, margins):
        """(table, verdict) of calibrations by a few models each, from (draws, models) offsets."""
        table = self.judged(offsets.ravel(), margins)
        for models in np.arange(offsets.size).reshape(offsets.shape):
            part = replace(table, accepted=table.accepted[:, models], ever_refused=table.ever_refused[:, models])
            yield part, decide(part, promise)

    @pytest.mark.parametrize("n_models", [4, 5, 10])
    def test_the_next_model_agrees_as_often_as_was_promised(self, n_models):
        """Over repeated draws of the few models it is chosen by: a margin that just contents them promises too much."""
        promise, rng = Promise(survival=0.5, reliability=0.8), np.random.default_rng(0)
        margins = np.arange(-2.0, 4.0, 0.25).tolist()
        decided = self.decided(rng.normal(size=(self.DRAWS, n_models)), promise, margins)
        truths = [ndtr(table.margins[verdict.position]) for table, verdict in decided if verdict.made]
        assert len(truths) > 0.9 * self.DRAWS, "a margin that contents everyone is among those tried"
        assert np.mean(truths) >= promise.reliability - 2 * np.std(truths) / np.sqrt(len(truths))

    def test_what_no_margin_keeps_is_seldom_promised(self):
        """Three models in ten never agree, whatever the margin; a lucky draw of twenty must not hide it often."""
        promise, rng = Promise(survival=0.5, reliability=0.8), np.random.default_rng(0)
        offsets = np.where(rng.random((self.DRAWS, 20)) < 0.3, 50.0, -50.0)
        made = [verdict.made for _, verdict in self.decided(offsets, promise, [0.0, 1.0])]
        assert np.mean(made) < 0.2

    def test_more_margin_than_needed_is_not_asked_for(self):
        """The other side of the promise: what every model keeps anyway costs nothing."""
        promise = Promise(survival=0.5, reliability=0.8)
        ((table, verdict),) = self.decided(np.full((1, 10), -50.0), promise, [-1.0, 0.0, 1.0])
        assert verdict.made
        assert table.margins[verdict.position] == -1.0

    def test_each_direction_has_a_margin_of_its_own(self):
        """Models that refuse nobody the one decision and are slow to grant the other: only the other needs a margin."""
        space, _ = line_of_numbers()
        target = np.repeat([0, 1], 40)
        query = Query(np.zeros((80, 1), np.float32), target, space.codes)
        deployed, models = DeployedModel(steps(1.0, [0.0])), steps(1.0, np.full(9, 1.5))

        def answer(margin):
            return np.where(target == 1, margin, -9.0)[:, None].astype(np.float32)

        directions = judge_margins([0.5, 1.0, 2.0], answer, query, deployed, models, ["no", "yes"])
        found = Calibration(Promise(), {"fast": directions}, 9, countable=True).with_promise(Promise())
        assert found.made
        assert found.margins().tolist() == [0.5, 2.0]


PEOPLE = pd.DataFrame({"x": [-1.5, -0.5, -0.1, 0.1, 0.5, 1.5]})


@pytest.fixture(scope="module")
def explainer():
    """The model in force grants from 0 on; all others grant nobody, so nobody can be promised a grant."""
    space, frame = line_of_numbers(-2.0, 2.0)
    never = steps(0.0, np.linspace(0.1, 0.2, 8))
    hypotheses = FiniteSet(never, space, np.array(["no", "yes"]), base=steps(1.0, [0.0]))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # no promise can be kept, and training is short
        recipe = Recipe(steps=40, layers=(16,), encoder=(8,), reference=ReferenceConfig(max_rows=50))
        return AVCG(hypotheses, recipe=recipe, survival=0.75).fit(frame)


class TestStatus:
    def test_a_valid_answer_that_the_models_set_aside_refuse_is_not_robust(self, explainer):
        delivered = explainer.generate(PEOPLE.head(3), target="yes")
        assert (delivered.frame["x"] >= 0).all()
        assert delivered.statuses.tolist() == ["not_robust"] * 3
        assert delivered.certificate.agreeing.tolist() == [0] * 3

    def test_one_that_they_all_accept_is_ok(self, explainer):
        delivered = explainer.generate(PEOPLE.tail(3), target="no")
        assert delivered.statuses.tolist() == ["ok"] * 3

    def test_the_light_scorer_says_the_same(self, explainer, tmp_path):
        explainer.save(tmp_path / "recourse", graphs=True)
        scorer = Scorer(tmp_path / "recourse")
        rows = PEOPLE.to_dict("records")
        assert [row.status for row in scorer.answer(rows[:3], target="yes")] == ["not_robust"] * 3
        assert [row.status for row in scorer.answer(rows[3:], target="no")] == ["ok"] * 3


class TestRefusals:
    @pytest.mark.parametrize("agreeing", [[5, 11], [-1, 5], [0, 3, 12, 10]])
    def test_one_impossible_count_among_possible_ones_is_refused(self, agreeing):
        with pytest.raises(SettingError, match="0 to n agreeing"):
            clopper_pearson(agreeing, 10)

    @pytest.mark.parametrize("shape", [(3,), (4, 2), (4, 4), (2, 3, 3)])
    def test_a_table_of_what_may_vary_of_another_shape_is_refused(self, shape):
        frame = pd.DataFrame(np.random.default_rng(0).normal(size=(20, 3)), columns=["a", "b", "c"])
        space = TabularSpace.fit(Schema.infer(frame), frame)
        with pytest.raises(SchemaError, match="one column per feature"):
            space.restrict(vary=np.ones(shape, bool))
