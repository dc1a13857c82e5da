"""Families of change: which rows and labels each retrain is trained on, for networks, estimators and functions."""

import contextlib
from typing import get_args

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler
from sklearn.tree import DecisionTreeClassifier

import avcg
import avcg.hypotheses.retrains as retrains_module
from avcg import BlackBox, Classifier, from_models, retrains, toys
from avcg.errors import DataError, SettingError
from avcg.hypotheses.families import IN_TIME, Families, How
from avcg.hypotheses.predictors import Joined, Stacked

LOANS = toys.loans(n=300)
NUMBERS = LOANS.X[["income", "months"]]
YEARS = np.repeat([2001, 2002, 2003, 2004], 25)


def rng(seed=0):
    return torch.Generator().manual_seed(seed)


def families(resampling, share=None, time=None, n_rows=100, n_classes=2):
    return Families.of(resampling, share, time, None, n_rows, n_classes)


def draws(resampling, count=50, **settings):
    own, numbers = families(resampling, **settings), rng()
    return [own.rows(resampling, own.available(resampling, numbers), numbers) for _ in range(count)]


class TestRows:
    @pytest.mark.parametrize(
        ("resampling", "share", "size", "distinct"),
        [
            ("seed", None, 100, 100),
            ("subsample", None, 80, 80),
            ("subsample", 0.3, 30, 30),
            ("added", None, 120, 100),
            ("added", 0.5, 150, 100),
            ("label_noise", None, 100, 100),
        ],
    )
    def test_how_many_and_which(self, resampling, share, size, distinct):
        for rows in draws(resampling, share=share):
            assert len(rows) == size
            assert len((rows % 100).unique()) == distinct

    def test_a_bootstrap_draws_with_replacement(self):
        sizes = [len(rows.unique()) for rows in draws("bootstrap", 200)]
        assert np.mean(sizes) == pytest.approx(100 * (1 - 0.99**100), abs=1)

    def test_every_row_is_as_likely(self):
        counts = torch.cat(draws("added", 2000, share=0.5)).bincount(minlength=100) / 2000
        assert torch.allclose(counts, torch.tensor(1.5), atol=0.1)

    @pytest.mark.parametrize("n_classes", [2, 3])
    def test_noisy_labels_are_other_labels(self, n_classes):
        own = families("label_noise", share=0.9, n_classes=n_classes)
        labels = torch.arange(100) % n_classes
        moved = own.moved_labels(labels)
        assert torch.equal(moved[:100], labels)
        other, numbers = set(), rng()
        for _ in range(20):
            rows = own.rows("label_noise", torch.arange(100), numbers)
            changed = moved[rows] != labels[rows % 100]
            assert int(changed.sum()) == 10
            other |= set((moved[rows] - labels[rows % 100])[changed].remainder(n_classes).tolist())
        assert other == set(range(1, n_classes))


class TestWindows:
    def test_a_rolling_window_is_a_stretch_of_time(self):
        ends = set()
        for rows in draws("rolling", time=YEARS, share=0.5):
            assert len(rows.unique()) == 50
            seen = np.bincount(YEARS[rows.numpy()] - 2001, minlength=4)
            first, last = np.flatnonzero(seen)[[0, -1]]
            assert (seen[first + 1 : last] == 25).all(), "whole years in between"
            ends.add(int(last))
        assert {2, 3} <= ends <= {1, 2, 3}

    def test_an_expanding_window_begins_at_the_beginning(self):
        sizes = set()
        for rows in draws("expanding", time=YEARS, share=0.4):
            seen = np.bincount(YEARS[rows.numpy()] - 2001, minlength=4)
            assert (seen[: np.flatnonzero(seen)[-1]] == 25).all()
            sizes.add(len(rows))
        assert min(sizes) >= 40
        assert max(sizes) > 90
        assert len(sizes) > 20

    def test_rows_of_one_moment_come_in_no_order(self):
        firsts = [set(rows.tolist()) for rows in draws("expanding", time=np.zeros(100), share=0.2)]
        assert any(rows != set(range(len(rows))) for rows in firsts)

    @pytest.mark.parametrize(
        "time", [pd.to_datetime(YEARS.astype(str)), YEARS.astype(str), pd.Series(YEARS, index=range(7, 107))]
    )
    def test_moments_of_any_kind_that_sorts(self, time):
        assert np.array_equal(families("rolling", time=time).time, YEARS - 2001)

    def test_a_column_of_the_rows(self):
        frame = pd.DataFrame({"year": YEARS})
        assert np.array_equal(Families.of("rolling", None, "year", frame, 100, 2).time, YEARS - 2001)

    def test_models_of_early_windows_know_early_rows_alone(self):
        """The border moves: what a network says of a row tells when it was trained."""
        moments = np.arange(600)
        X = pd.DataFrame({"a": np.random.default_rng(0).uniform(0, 1, 600)})
        y = (X["a"].to_numpy() > 0.2 + 0.6 * moments / 600).astype(int)
        for model in (
            Classifier(hidden=(8,), epochs=400, random_state=0).fit(X, y),
            LogisticRegression(C=1e3).fit(X, y),
        ):
            found = retrains(model, X, y, n=8, resampling="rolling", share=0.25, time=moments)
            grid = found.space.encode(pd.DataFrame({"a": np.linspace(0, 1, 201)}))
            borders = (found.predictors.probabilities(grid)[..., 1] < 0.5).double().mean(dim=1)
            assert borders.max() - borders.min() > 0.15
            assert len(found) == 8, "another border is no failed fit"


class TestMixing:
    def test_each_model_draws_its_family(self):
        own = families({"seed": 3, "bootstrap": 1})
        assert own.chances == {"seed": 0.75, "bootstrap": 0.25}
        drawn = own.draw(4000, rng())
        assert drawn.count("seed") / 4000 == pytest.approx(0.75, abs=0.03)
        assert len({tuple(own.draw(5, rng(seed))) for seed in range(20)}) > 5, "no quota"

    @pytest.mark.parametrize("model", ["network", "estimator"])
    def test_families_of_all_kinds_together(self, model):
        fitted = (
            Classifier(hidden=(8,), epochs=150).fit(NUMBERS, LOANS.y)
            if model == "network"
            else make_pipeline(StandardScaler(), LogisticRegression()).fit(NUMBERS, LOANS.y)
        )
        mixed = dict.fromkeys(("bootstrap", "subsample", "added", "label_noise", "rolling", "expanding"), 1.0)
        found = retrains(fitted, NUMBERS, LOANS.y, n=12, resampling=mixed, time=np.arange(300))
        assert len(found) == 12
        assert isinstance(found.predictors, Stacked), "networks, all of one kind"
        said = found.predictors.probabilities(found.space.encode(NUMBERS.head(5)))
        assert len(said[:, 0, 0].unique()) == 12

    def test_a_family_with_few_rows_does_not_keep_another_from_stopping_early(self, monkeypatch):
        """Of 600 rows a bootstrap keeps 60 to stop by, and a window of 120 rows none."""
        seen, fit = [], retrains_module.fit_stacked

        def watched(network, x, y, rows, settings, *, held, **more):
            seen.append((rows.shape, None if held is None else held.shape))
            return fit(network, x, y, rows, settings, held=held, **more)

        monkeypatch.setattr(retrains_module, "fit_stacked", watched)
        many = toys.loans(n=600)
        model = Classifier(hidden=(8,), epochs=100).fit(many.X, many.y)
        mixed = {"bootstrap": 1, "rolling": 1}
        found = retrains(model, many.X, many.y, n=12, resampling=mixed, share=0.2, time=np.arange(600))
        (first, held), (second, none) = seen[:2]
        assert (first[1], held[1], none) == (540, 60, None)
        assert second[1] == 120
        assert first[0] + second[0] == 12
        assert len(found) == 12

    def test_label_noise_makes_a_network_less_sure(self):
        model = Classifier(hidden=(8,), epochs=150).fit(NUMBERS, LOANS.y)
        sure = [
            float(
                retrains(model, NUMBERS, LOANS.y, n=6, resampling=how, share=0.8)
                .predictors.probabilities(model.space_.encode(NUMBERS)).max(dim=2).values.mean()
            )
            for how in ("seed", "label_noise")
        ]  # fmt: skip
        assert sure[1] < sure[0] - 0.05


class TestVariants:
    def test_networks_of_other_sizes(self):
        model = Classifier(hidden=(8,), epochs=150).fit(LOANS.X, LOANS.y)
        wide = Classifier(hidden=(16, 16), epochs=150)
        found = retrains(model, LOANS.X, LOANS.y, n=10, variants=[wide])
        assert len(found) == 10
        assert isinstance(found.predictors, Joined)
        assert {len(group) for group in found.predictors.groups} != {10}
        assert sum(len(group) for group in found.predictors.groups) == 10
        assert not hasattr(wide, "network_"), "what was given is left alone"

    def test_other_estimators(self):
        model = LogisticRegression(C=0.01).fit(NUMBERS, LOANS.y)
        found = retrains(model, NUMBERS, LOANS.y, n=10, variants=[LogisticRegression(C=100.0)])
        steep = [float(one.overrides["0.weight"].abs().max()) for one in [found.predictors]]
        assert isinstance(found.predictors, Stacked), "all of them are networks exactly"
        sizes = found.predictors.overrides["0.weight"].abs().amax(dim=(1, 2))
        assert sizes.max() / sizes.min() > 1.3, steep
        forest = retrains(model, NUMBERS, LOANS.y, n=10, variants=[DecisionTreeClassifier(max_depth=3)])
        assert len(forest) == 10
        assert not forest.predictors.differentiable


def grown(rows, labels, seed):
    """A tree that is trained with more than rows and labels."""
    weight = np.where(rows["income"] > 50, 2.0, 1.0)
    return DecisionTreeClassifier(max_depth=3, random_state=seed).fit(rows, labels, sample_weight=weight)


def border(rows, labels, seed):
    """A function, by the mean income of those who are granted."""
    least = rows["income"][labels == 1].mean()
    return lambda frame: 1 / (1 + np.exp(-(frame["income"].to_numpy() - least)))


class TestOwnTraining:
    def test_with_more_than_rows_and_labels(self):
        model = grown(NUMBERS, LOANS.y, 0)
        found = retrains(model, NUMBERS, LOANS.y, n=6, refit=grown)
        assert len(found) == 6
        assert np.allclose(
            found.base.probabilities(found.space.encode(NUMBERS)).numpy()[0], model.predict_proba(NUMBERS)
        )

    @pytest.mark.parametrize("wrapped", [False, True])
    def test_functions(self, wrapped):
        rule = border(NUMBERS, LOANS.y, 0)
        model = BlackBox(rule, NUMBERS) if wrapped else rule
        found = retrains(model, NUMBERS, LOANS.y, n=6, refit=border)
        said = found.predictors.probabilities(found.space.encode(NUMBERS.head(3)))[..., 1]
        assert len(said[:, 0].unique()) == 6
        assert np.allclose(
            found.base.probabilities(found.space.encode(NUMBERS)).numpy()[0, :, 1], rule(NUMBERS), atol=1e-6
        )

    def test_what_cannot_be_trained_says_how(self):
        for model in (BlackBox(border(NUMBERS, LOANS.y, 0), NUMBERS), border(NUMBERS, LOANS.y, 0)):
            with pytest.raises(SettingError, match="can be asked, and not trained"):
                retrains(model, NUMBERS, LOANS.y, n=2)

    def test_early_stopping_of_xgboost_says_how(self):
        xgboost = pytest.importorskip("xgboost")
        settings = {"n_estimators": 10, "n_jobs": 1, "early_stopping_rounds": 2}

        def stopped(rows, labels, seed):
            held = len(rows) // 5
            model = xgboost.XGBClassifier(**settings, random_state=seed)
            return model.fit(rows[held:], labels[held:], eval_set=[(rows[:held], labels[:held])], verbose=False)

        model = stopped(NUMBERS, LOANS.y, 0)
        with pytest.raises(SettingError, match=r"Refitting a XGBClassifier .* failed: .* say how: refit="):
            retrains(model, NUMBERS, LOANS.y, n=2)
        assert len(retrains(model, NUMBERS, LOANS.y, n=3, refit=stopped)) == 3

    def test_lightgbm_with_categories(self):
        frame = LOANS.X[["income", "housing"]].astype({"housing": "category"})
        lightgbm = pytest.importorskip("lightgbm")
        model = lightgbm.LGBMClassifier(n_estimators=5, n_jobs=1, verbose=-1).fit(frame, LOANS.y)
        mixed = {"bootstrap": 1, "rolling": 1}
        assert len(retrains(model, frame, LOANS.y, n=4, resampling=mixed, time=np.arange(300), n_jobs=1)) == 4


class CopiesItsLists(DecisionTreeClassifier):
    """An estimator that scikit-learn does not clone, since it keeps a copy of a list that it is given."""

    def __init__(self, names=(), max_depth=2, random_state=0):
        super().__init__(max_depth=max_depth, random_state=random_state)
        self.names = list(names)


def test_an_estimator_with_lists_of_its_own():
    found = retrains(CopiesItsLists(["income"]).fit(NUMBERS, LOANS.y), NUMBERS, LOANS.y, n=3)
    assert len(found) == 3


def small_models():
    """By name: a fitted model of each kind, and what trains it again if it cannot be cloned."""
    from lightgbm import LGBMClassifier
    from xgboost import XGBClassifier

    estimators = {
        "network": Classifier(hidden=(16,), epochs=60, learning_rate=5e-3),
        "pipeline": make_pipeline(StandardScaler(), LogisticRegression()),
        "xgboost": XGBClassifier(n_estimators=4, n_jobs=1),
        "lightgbm": LGBMClassifier(n_estimators=4, n_jobs=1, verbose=-1),
        "lists of its own, as CatBoost": CopiesItsLists(["income"]),
    }
    fitted = {name: (estimator.fit(NUMBERS, LOANS.y), None) for name, estimator in estimators.items()}
    return {**fitted, "function": (border(NUMBERS, LOANS.y, 0), border)}


SMALL = ("network", "pipeline", "xgboost", "lightgbm", "lists of its own, as CatBoost", "function")


@pytest.fixture(scope="module")
def small():
    return small_models()


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("family", get_args(How))
def test_each_family_of_each_kind_of_model(small, family, name):
    model, refit = small[name]
    time = np.arange(len(NUMBERS)) if family in IN_TIME else None
    same = family == "seed" and name != "network"
    with pytest.warns(UserWarning, match="does not depend on 'seed'") if same else contextlib.nullcontext():
        found = retrains(model, NUMBERS, LOANS.y, n=3, resampling=family, time=time, refit=refit, n_jobs=1)
    said = found.predictors.probabilities(found.space.encode(NUMBERS.head(50)))
    assert said.shape == (3, 50, 2)
    assert np.allclose(said[0], said[1]) == same


class TestDeployedInThePast:
    def test_networks_are_networks(self):
        halves = [Classifier(hidden=(8,), epochs=60).fit(LOANS.X[i::2], LOANS.y[i::2]) for i in range(2)]
        found = from_models(halves, LOANS.X, deployed=halves[1])
        assert isinstance(found.predictors, Stacked)
        assert isinstance(found.base, Stacked)
        x = found.space.encode(LOANS.X)
        for said, model in zip(found.predictors.probabilities(x), halves, strict=True):
            assert np.allclose(said, model.predict_proba(LOANS.X), atol=1e-6)

    def test_of_one_space_they_are_the_same(self):
        model = Classifier(hidden=(8,), epochs=5).fit(LOANS.X, LOANS.y)
        found = from_models([model, model], LOANS.X, space=model.space_)
        assert all(
            torch.equal(value[0], model.network_.state_dict()[name])
            for name, value in found.predictors.overrides.items()
        )

    def test_beside_trees_they_are_asked(self):
        model = Classifier(hidden=(8,), epochs=5).fit(NUMBERS, LOANS.y)
        found = from_models([model, DecisionTreeClassifier(max_depth=2, random_state=0).fit(NUMBERS, LOANS.y)], NUMBERS)
        assert not found.predictors.differentiable

    def test_a_converted_one_is_not_trained_again(self):
        model = Classifier(hidden=(8,), epochs=5).fit(LOANS.X, LOANS.y)
        converted = avcg.from_torch(model.network_, model.space_.encode, LOANS.X)
        with pytest.raises(SettingError, match="does not know how it was trained"):
            retrains(converted, LOANS.X, LOANS.y, n=2)


@pytest.mark.parametrize(
    ("settings", "error", "says"),
    [
        ({"resampling": "rol"}, SettingError, "must be one of 'seed', .* 'expanding' or shares of these. Got 'rol'"),
        ({"resampling": {}}, SettingError, "at least one family"),
        ({"resampling": {"seed": 0}}, SettingError, "share of the family 'seed' must be a number > 0"),
        ({"resampling": "rolling"}, SettingError, "'rolling' needs 'time'"),
        ({"time": np.arange(300)}, SettingError, "'time' is for resampling='rolling'"),
        ({"resampling": "rolling", "time": "year"}, DataError, "names column 'year', which the rows do not have"),
        ({"resampling": "rolling", "time": np.arange(3)}, DataError, "one moment per row, 300. Got 'time' with 3"),
        ({"resampling": "rolling", "time": [None] + [1] * 299}, DataError, "1 values of 'time' are missing"),
        ({"share": 1.0}, SettingError, r"'share' of retrains must be in \(0, 1\)"),
        ({"refit": grown, "variants": [LogisticRegression()]}, SettingError, "takes no 'variants'"),
    ],
)
def test_wrong_settings(settings, error, says):
    with pytest.raises(error, match=says):
        retrains(LogisticRegression().fit(NUMBERS, LOANS.y), NUMBERS, LOANS.y, n=2, **settings)
