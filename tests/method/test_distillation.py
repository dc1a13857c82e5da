"""Students of models that can only be asked."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from asked_models import NUMBERS, SHORT, Y, fitted, tree_of_numbers
from sklearn.tree import DecisionTreeClassifier

from avcg import AVCG, BlackBox, FiniteSet, PointMass, Recipe, Schema, TabularSpace, from_models
from avcg.errors import SettingError
from avcg.hypotheses.predictors import Joined, Opaque
from avcg.method import distillation
from avcg.method.acceptance import Acceptance
from avcg.method.config import SearchConfig
from avcg.method.distillation import Distillation
from avcg.method.objective import target_log_probs
from avcg.method.query import Query
from avcg.method.refine import Refiner
from avcg.method.risk import lower_log_odds
from avcg.models.decision import DecisionRule
from avcg.models.networks import draw_state, mlp
from avcg.models.stacked_fit import fit_stacked
from avcg.models.training import Training
from avcg.space.images import ImageSpace


class TestStudents:
    @staticmethod
    def taught(seed=0):
        models = from_models(
            [DecisionTreeClassifier(max_depth=3, random_state=0).fit(NUMBERS[i::3], Y[i::3]) for i in range(3)], NUMBERS
        )
        x = models.space.encode(NUMBERS)
        rng = torch.Generator().manual_seed(seed)
        train, deployed = models.predictors.subset(torch.tensor([0, 1])), models.predictors.subset(torch.tensor([2]))
        found = Distillation(deployed, train, x, models.space, rng, SHORT.distillation)
        found.correct(models.space.cross(x, x.flip(0), rng), rng)
        return found, Joined([deployed, train]), x

    def test_they_say_what_their_models_say(self):
        found, models, x = self.taught()
        same = found.students.log_probs(x).argmax(-1) == models.log_probs(x).argmax(-1)
        assert (same.float().mean(dim=1) >= 0.9).all(), "each student its own model, those in force first"
        assert found.students.differentiable
        train, deployed = found.stand_ins()
        assert (len(train), len(deployed)) == (2, 1)
        assert torch.equal(deployed.log_probs(x)[0], found.students.log_probs(x)[0])
        torch.testing.assert_close(train.predictors.log_probs(x), found.students.log_probs(x)[1:])

    def test_refined_answers_cost_no_more_and_still_convince_them(self):
        found, _, x = self.taught()
        target = 1 - found.students.predictive(x).argmax(dim=1)
        space = TabularSpace.fit(Schema.infer(NUMBERS), NUMBERS)
        answers, margin = x.flip(0), torch.full((len(x),), 0.3)

        def lowest(points):
            log_p = target_log_probs(found.students, points[None], target)
            return lower_log_odds(log_p, found.students.weights, 2.0)[0]

        def judge(points):
            return found.students.probabilities(torch.from_numpy(points)).numpy()

        weights = found.students.weights.double().numpy()
        acceptance = Acceptance(judge, weights, np.ones(1), DecisionRule(), survival=0.5, spread=2.0)
        query = Query(x.numpy(), target.numpy(), space.codes)
        refined = Refiner(acceptance).refined(query, answers.numpy(), margin.numpy(), SearchConfig().steps)
        refined = torch.from_numpy(refined)
        convinced = lowest(answers) >= margin
        assert 20 < convinced.sum() < 280
        before, after = space.distance(answers, x), space.distance(refined, x)
        assert (after <= before + 1e-6)[convinced].all()
        assert (lowest(refined) >= margin - 1e-5)[convinced].all()
        assert after[convinced].mean() < 0.9 * before[convinced].mean()
        missing = torch.stack([(margin - lowest(points)).clamp(min=0)[~convinced] for points in (answers, refined)])
        assert missing[1].mean() < 0.7 * missing[0].mean(), "others come closer to the margin"
        assert (missing[1] < 1e-5).float().mean() > 0.2, "and some of them reach it"

    def test_the_report_is_of_rows_before_they_were_taught(self):
        report = self.taught()[0].report()
        assert list(report.columns) == ["rows", "agreement", "difference", "n_rows"]
        assert report["rows"].tolist() == ["training", "answers"]
        assert report["n_rows"].tolist() == [30, 300]
        assert report["agreement"].between(0.8, 1).all()
        assert report["difference"].between(0, 0.2).all()

    def test_a_seed_means_the_same_students(self):
        one, two, other = (self.taught(seed)[0].students.overrides for seed in (3, 3, 4))
        assert all(torch.equal(one[name], two[name]) for name in one)
        assert not all(torch.equal(one[name], other[name]) for name in one)

    def test_targets_of_ones_own_are_separate_lessons(self):
        def rng(seed):
            return torch.Generator().manual_seed(seed)

        x = torch.randn(96, 5, generator=rng(1))
        said = torch.softmax(torch.randn(4, 96, 3, generator=rng(2)), dim=-1)
        network = mlp(5, 3, (8,))
        start = draw_state(network, 4, rng(3))
        rows = torch.stack([torch.randperm(96, generator=rng(s))[:80] for s in range(4)])
        held = torch.stack([torch.randperm(96, generator=rng(9 + s))[:16] for s in range(4)])
        settings = Training(epochs=5, batch_size=32, patience=2)
        options = {"loss": distillation._cross_entropy, "own_targets": True}
        together, _ = fit_stacked(network, x, said, rows, settings, rng=rng(9), start=start, held=held, **options)
        for s in range(4):
            part = slice(s, s + 1)
            mine = {name: value[part] for name, value in start.items()}
            alone, _ = fit_stacked(
                network, x, said[part], rows[part], settings, rng=rng(9), start=mine, held=held[part], **options
            )
            shared, _ = fit_stacked(
                network, x, said[s], rows[part], settings, rng=rng(9), start=mine, held=held[part],
                loss=distillation._cross_entropy,
            )  # fmt: skip
            for name in alone:
                torch.testing.assert_close(together[name][s], alone[name][0], atol=1e-5, rtol=1e-4)
                torch.testing.assert_close(alone[name], shared[name], atol=1e-6, rtol=1e-5)

    def test_a_handful_of_rows(self):
        explainer = fitted(
            AVCG(PointMass(BlackBox(tree_of_numbers(), NUMBERS)), recipe=replace(SHORT, steps=5, layers=(8,))),
            NUMBERS.head(4),
        )
        assert explainer.distillation_.report()["agreement"].notna().all()

    def test_pictures_have_none(self):
        images = np.random.default_rng(0).random((40, 1, 4, 4)).astype(np.float32)
        blind = FiniteSet(Opaque([lambda x: torch.full((len(x), 2), 0.5)]), ImageSpace.fit(images), np.array([0, 1]))
        with pytest.raises(SettingError, match="Students can only be trained for models of tables"):
            AVCG(blind, recipe=Recipe(steps=5)).fit(images)

    def test_half_of_the_steps_come_first(self):
        parts = Recipe(steps=600).in_rounds()
        assert [part.steps for part in parts] == [300, 100, 100, 100]
        assert [part.warm_up for part in parts] == [Recipe().warm_up, 0, 0, 0]
        assert [part.steps for part in Recipe(steps=1).in_rounds()] == [1, 1, 1, 1]
