"""Where no change may be as good or better: counted by hand, and the same on every way to an answer."""

import numpy as np
import pandas as pd
import pytest
import torch

import avcg
from avcg import AVCG, BlackBox, Classifier, Recipe, from_models, retrains, toys
from avcg.baselines.nearest import NearestUnlike
from avcg.explainers.records import VOTES, votes_in_words
from avcg.guarantees.certificate import Certificate
from avcg.io.scorer import Scorer

QUICK = Recipe(steps=120, layers=(16,), single_pass=True)


@pytest.fixture(scope="module")
def recourse():
    loans = toys.loans(n=300)
    model = Classifier(hidden=(8,), epochs=60, schema=loans.schema).fit(loans.X, loans.y)
    return AVCG(retrains(model, loans.X, loans.y, n=20, random_state=3), recipe=QUICK, survival=0.6).fit(loans.X), loans


def denied(recourse, loans):
    return loans.X[recourse.decide(loans.X) == 0].head(40)


class TestCounts:
    def test_by_hand(self):
        agrees = np.array([[True, False], [True, False], [False, True]])
        before = np.array([[True, True], [False, False], [True, False]])
        certificate = Certificate.of(agrees, 1, 0.95, before)
        assert certificate.accepting_unchanged.tolist() == [2, 1]
        assert certificate.harmed.tolist() == [1, 1]
        assert certificate.to_frame()[["accepting_unchanged", "harmed"]].to_numpy().tolist() == [[2, 1], [1, 1]]
        assert Certificate.of(agrees, 1, 0.95).harmed is None

    def test_asking_every_held_out_model_again(self, recourse):
        recourse, loans = recourse
        people = denied(recourse, loans)
        answers = recourse.generate(people, 1, n=2)
        held, space = recourse.split_.held_out, recourse.space_
        with torch.no_grad():
            before, after = (
                held.probabilities(space.encode(rows)).argmax(-1).numpy() == 1 for rows in (people, answers.answers)
            )
        before = before.repeat(2, axis=1)
        assert answers.certificate.accepting_unchanged.tolist() == before.sum(axis=0).tolist()
        assert answers.certificate.harmed.tolist() == (before & ~after).sum(axis=0).tolist()
        assert answers.certificate.accepting_unchanged.max() > 0, "somebody is at the border"

    def test_harm_happens_and_is_said(self):
        """Models of two kinds: high incomes for some, low ones for others. Whoever pleases the one loses the other."""
        X = pd.DataFrame({"income": np.linspace(0.0, 100.0, 60)})
        high, low = (
            BlackBox(rule, X) for rule in (lambda rows: (rows["income"] > 50) * 1.0, lambda r: (r["income"] < 50) * 1.0)
        )
        mixed = from_models([high, high, low, high, high, low, low, low], X, deployed=high)
        answers = NearestUnlike(mixed, n_test=4).fit(X).generate(X[X["income"] < 40], 1)
        assert (answers.certificate.harmed == answers.certificate.accepting_unchanged).all()
        assert (answers.certificate.harmed > 0).all()
        assert "so that it may do harm" in str(answers)

    def test_saved_answers_keep_them(self, recourse):
        recourse, loans = recourse
        answers = recourse.generate(denied(recourse, loans), 1)
        again = avcg.Counterfactuals.from_json(answers.to_json())
        assert again.certificate.harmed.tolist() == answers.certificate.harmed.tolist()
        assert [row.options for row in again] == [row.options for row in answers]
        part = answers.take(np.array([3, 1]))
        assert part.certificate.accepting_unchanged.tolist() == answers.certificate.accepting_unchanged[[3, 1]].tolist()

    def test_the_light_scorer_counts_alike(self, recourse, tmp_path):
        recourse, loans = recourse
        people = denied(recourse, loans)
        recourse.save(tmp_path / "saved", graphs=True)
        light = Scorer(tmp_path / "saved").answer(people.to_dict("records"), 1)
        full = list(recourse.generate(people, 1))
        for one, other in zip(light, full, strict=True):
            assert one.options[0].accepting_unchanged == other.options[0].accepting_unchanged
            assert one.options[0].harmed == other.options[0].harmed
            assert one.options[0].agreement(24) == other.options[0].agreement(24)


class TestWords:
    @pytest.mark.parametrize(
        ("unchanged", "harmed", "says"),
        [
            (0, 0, "accepted by 9 of 10 models held back from training"),
            (5, 0, "accepted by 9 of 10 models held back from training"),
            (6, 0, "; 6 of 10 accept the row without any change, so that waiting may do"),
            (6, 1, "; 1 of 10 accepts the row only without this change, so that it may do harm"),
            (2, 2, "; 2 of 10 accept the row only without this change, so that it may do harm"),
        ],
    )
    def test_of_votes(self, unchanged, harmed, says):
        assert votes_in_words("ok", 9, 10, unchanged, harmed).endswith(says)

    def test_unchanged_rows_are_told_nothing(self):
        assert votes_in_words("already_target", 9, 10, 9, 0) is None
        assert VOTES == ("status", "agreeing", "n_models", "accepting_unchanged", "harmed")


class TestDrawsAroundOneNetwork:
    def test_the_promise_says_so_and_retrains_mend_it(self):
        loans = toys.loans(n=300)
        model = Classifier(hidden=(8,), epochs=60, dropout=0.2, schema=loans.schema).fit(loans.X, loans.y)
        with pytest.warns(
            avcg.errors.PromiseWarning, match=r"draws around one network.*calibrate\(models=avcg.retrains"
        ):
            recourse = AVCG(avcg.MCDropout(model), recipe=QUICK, survival=0.5, reliability=0.5).fit(loans.X)
        assert all("next model drawn around this network accepts" in str(each) for each in recourse.statements())
        again = recourse.calibrate(models=retrains(model, loans.X, loans.y, n=12, random_state=5))
        assert not any("drawn around" in str(each) for each in again.statements())
        assert not again.calibration_.around_one_network

    def test_it_is_stored(self, tmp_path):
        loans = toys.loans(n=200)
        model = Classifier(hidden=(8,), epochs=10, dropout=0.2, schema=loans.schema).fit(loans.X, loans.y)
        with pytest.warns(avcg.errors.PromiseWarning):
            recourse = AVCG(avcg.MCDropout(model), recipe=QUICK, survival=0.5, reliability=0.5).fit(loans.X)
        recourse.save(tmp_path / "saved")
        loaded = avcg.load(tmp_path / "saved")
        assert loaded.statements() == recourse.statements()
        assert loaded.split_.around_one_network

    @pytest.mark.parametrize("kind", ["dropout", "rashomon", "mixture", "laplace", "sampled", "retrains"])
    def test_which_are(self, kind):
        loans = toys.loans(n=120)
        model = Classifier(hidden=(8,), epochs=5, dropout=0.2, schema=loans.schema).fit(loans.X, loans.y)
        masks = avcg.MCDropout(model)
        made = {
            "dropout": lambda: masks,
            "rashomon": lambda: avcg.rashomon_set(masks, loans.X, loans.y, 5.0, n=5),
            "mixture": lambda: avcg.Mixture([retrains(model, loans.X, loans.y, n=2), masks]),
            "laplace": lambda: avcg.Laplace.fit(model, loans.X, loans.y),
            "sampled": lambda: avcg.SampledWeights(model.network_, None, model.space_),
            "retrains": lambda: retrains(model, loans.X, loans.y, n=2),
        }[kind]()
        assert avcg.hypotheses.base.is_around_one_network(made) == (kind != "retrains")
