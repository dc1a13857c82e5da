"""Models trained again, or trained already by someone: networks where they can be, and asked where not."""

import numpy as np
import pytest
import torch
from asked_models import NUMBERS, SCHEMA, SHORT, TOY, X, Y, boosted, columns, fitted, recount, tree_of_numbers
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, PolynomialFeatures, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from strategies import complaints

from avcg import AVCG, BlackBox, Classifier, from_models, retrains
from avcg.baselines.nearest import RobustNeighbour
from avcg.hypotheses import retrains as retraining
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.predictors import Stacked


class TestModelsTrainedAgain:
    @staticmethod
    def fitted_by(monkeypatch, model, rows, **options):
        seen = []
        gather = retraining.gather

        def watched(models, *rest):
            seen.append(list(models))
            return gather(models, *rest)

        monkeypatch.setattr(retraining, "gather", watched)
        return retrains(model, rows, Y, n=3, resampling="bootstrap", **options), seen

    @pytest.mark.parametrize(
        ("last", "gradients"),
        [
            (LogisticRegression(), True),
            (make_pipeline(PolynomialFeatures(2), LogisticRegression(max_iter=5000)), False),
            (DecisionTreeClassifier(max_depth=3, random_state=0), False),
            (GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2), True),
            (GridSearchCV(DecisionTreeClassifier(random_state=0), {"max_depth": [2, 3]}, cv=2), False),
        ],
        ids=["convertible", "polynomial", "tree", "search", "search of trees"],
    )
    def test_networks_where_it_can_be_and_else_asked(self, monkeypatch, last, gradients):
        model = make_pipeline(StandardScaler(), last).fit(NUMBERS, Y)
        members, (base, models) = self.fitted_by(monkeypatch, model, NUMBERS)
        assert members.predictors.differentiable is gradients
        assert isinstance(members.predictors, Stacked if gradients else BlackBoxPredictors)
        assert base == [model]
        x = members.space.encode(NUMBERS)
        for found, one in zip(members.predictors.log_probs(x).exp(), models, strict=True):
            np.testing.assert_allclose(found, one.predict_proba(NUMBERS), atol=1e-4)
        np.testing.assert_allclose(members.base.predictive(x), model.predict_proba(NUMBERS), atol=1e-4)

    def test_two_processes_do_the_same(self):
        one, two = (
            retrains(tree_of_numbers(), NUMBERS, Y, n=4, resampling="bootstrap", n_jobs=jobs).predictors
            for jobs in (1, 2)
        )
        x = BlackBox(tree_of_numbers(), NUMBERS).space_.encode(NUMBERS)
        assert torch.equal(one.probabilities(x), two.probabilities(x))

    def test_tables_of_numbers_have_no_names(self):
        table = NUMBERS.to_numpy()
        members = retrains(DecisionTreeClassifier(max_depth=3, random_state=0), table, Y, n=2, resampling="bootstrap")
        assert members.base is None
        delivered = RobustNeighbour(members).fit(table, Y).generate(table[:5])
        assert delivered.frame.shape == (5, 2)

    def test_last_years_models(self):
        years = [boosted("tree").fit(X[i::6], Y[i::6]) for i in range(6)]
        search = GridSearchCV(boosted("tree"), {"decisiontreeclassifier__max_depth": [2, 3]}, cv=2).fit(X, Y)
        hypotheses = from_models([*years, search], X, deployed=years[-1], schema=SCHEMA)
        assert len(hypotheses) == 7
        x = hypotheses.space.encode(X)
        np.testing.assert_array_equal(hypotheses.base.bind_rows(X).predictive(x), years[-1].predict_proba(X))
        for found, one in zip(hypotheses.predictors.bind_rows(X).probabilities(x), [*years, search], strict=True):
            np.testing.assert_array_equal(found, one.predict_proba(X))
        explainer = RobustNeighbour(hypotheses).fit(X)
        recount(years[-1], explainer, explainer.generate(X.head(40)))

    def test_models_that_can_be_networks_become_such(self):
        lines = [
            make_pipeline(columns(OneHotEncoder), StandardScaler(), LogisticRegression()).fit(X[i::3], Y[i::3])
            for i in range(3)
        ]
        assert from_models(lines, X, schema=SCHEMA).predictors.differentiable
        mixed = from_models([*lines, boosted("tree").fit(X, Y)], X, deployed=lines[0], schema=SCHEMA)
        assert not mixed.predictors.differentiable
        assert mixed.base.differentiable
        x = mixed.space.encode(X)
        for found, one in zip(mixed.predictors.probabilities(x), lines, strict=False):
            np.testing.assert_allclose(found, one.predict_proba(X), atol=1e-6)

    def test_answers_of_networks_judged_by_trees(self):
        model = Classifier(hidden=(8,), epochs=60, schema=TOY.schema).fit(TOY.X, Y)
        explainer = fitted(AVCG(retrains(model, TOY.X, Y, n=4), recipe=SHORT), TOY.X)
        tree = boosted("tree").fit(TOY.X, Y)
        today = explainer.judged_by(from_models([tree], TOY.X, deployed=tree, space=explainer.space_))
        denied = TOY.X[tree.predict(TOY.X) == 0].head(30)
        for effort in ("fast", "thorough"):
            delivered = today.generate(denied, effort=effort)
            assert delivered.certificate is None
            assert ((tree.predict(delivered.frame) == 1) == (delivered.status == "ok")).all()
            assert complaints(TOY.schema, TOY.X, denied, delivered.frame) == []
        assert explainer.generate(denied).certificate is not None, "the first is as it was"
