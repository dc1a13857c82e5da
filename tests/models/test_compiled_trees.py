"""Compiled trees give the probabilities of the models themselves: at random values, at thresholds, and at gaps."""

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.compose import make_column_transformer
from sklearn.decomposition import PCA
from sklearn.ensemble import (
    ExtraTreesClassifier,
    GradientBoostingClassifier,
    HistGradientBoostingClassifier,
    RandomForestClassifier,
)
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import FunctionTransformer, OneHotEncoder, OrdinalEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn

from avcg import BlackBox
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.on_device import OnDevice
from avcg.hypotheses.predictors import Joined, Stacked
from avcg.io.black_boxes import LightGBM
from avcg.models import compiled_trees, trees
from avcg.models.affine import schema_with_gaps
from avcg.models.judging import Judges, _Frames
from avcg.models.tree_tables import _LARGE, _SMALL, TreeTables
from avcg.space.encoding import Values
from avcg.space.frames import new_frame, read_values
from avcg.space.tabular import TabularSpace

ROWS = 400


def table(seed=0, *, missing=False, categories="category"):
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(
        {
            "wide": rng.normal(30_000, 9_000, ROWS),
            "whole": rng.integers(0, 60, ROWS),
            "narrow": rng.normal(size=ROWS).astype(np.float32),
            "kind": rng.choice(["a", "b", "c", "d", "e"], ROWS),
            "flag": rng.choice(["no", "yes"], ROWS),
            "fixed": 3.0,
        }
    )
    score = X["wide"] / 9_000 + X["whole"] / 15 + X["narrow"] * X["kind"].isin(["a", "d"]) + (X["flag"] == "yes")
    if missing:
        X.loc[rng.random(ROWS) < 0.2, ["wide", "kind"]] = None
        X["whole"] = X["whole"].where(rng.random(ROWS) > 0.1)
    X[["kind", "flag"]] = X[["kind", "flag"]].astype(categories)
    return X, score.to_numpy() + rng.normal(size=ROWS)


def labels(score, n_classes):
    return np.digitize(score, np.quantile(score, np.arange(1, n_classes) / n_classes))


def boosting(library):
    module = pytest.importorskip(library)
    if library == "xgboost":
        return lambda s: module.XGBClassifier(n_estimators=15, enable_categorical=True, n_jobs=1, random_state=s)
    if library == "lightgbm":
        return lambda s: module.LGBMClassifier(
            n_estimators=15, min_child_samples=3, min_data_per_group=5, cat_smooth=1, max_cat_to_onehot=2, n_jobs=1,
            verbose=-1, random_state=s,
        )  # fmt: skip
    return lambda s: module.CatBoostClassifier(
        iterations=15, depth=4, thread_count=1, verbose=0, allow_writing_files=False, random_seed=s
    )


def histogram(s):
    return HistGradientBoostingClassifier(max_iter=15, categorical_features="from_dtype", random_state=s)


NUMBERS, CHOICES = ["wide", "whole", "narrow", "fixed"], ["kind", "flag"]


def encoded(make, *, encoder=None, numbers="passthrough"):
    encoder = encoder or OrdinalEncoder(handle_unknown="use_encoded_value", unknown_value=-1, encoded_missing_value=-2)
    return lambda s: make_pipeline(make_column_transformer((encoder, CHOICES), (numbers, NUMBERS)), make(s))


def scaled():
    return make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())


def one_hot():
    return OneHotEncoder(handle_unknown="ignore", sparse_output=False)


MODELS = {
    "xgboost": lambda: boosting("xgboost"),
    "lightgbm": lambda: boosting("lightgbm"),
    "catboost": lambda: encoded(boosting("catboost")),
    "histogram": lambda: histogram,
    "forest": lambda: encoded(lambda s: RandomForestClassifier(15, max_depth=6, random_state=s)),
    "deep forest": lambda: encoded(lambda s: RandomForestClassifier(15, random_state=s)),
    "extra trees": lambda: encoded(lambda s: ExtraTreesClassifier(15, max_depth=6, random_state=s)),
    "tree": lambda: encoded(lambda s: DecisionTreeClassifier(max_depth=5, random_state=s)),
    "stump": lambda: encoded(lambda s: DecisionTreeClassifier(max_depth=1, random_state=s)),
    "scaled forest": lambda: encoded(
        lambda s: RandomForestClassifier(15, max_depth=6, random_state=s), encoder=one_hot(), numbers=scaled()
    ),
    "scaled xgboost": lambda: encoded(boosting("xgboost"), encoder=one_hot(), numbers=scaled()),
    "scaled catboost": lambda: encoded(boosting("catboost"), numbers=scaled()),
}
COMPLETE = {
    "gradient boosting": lambda: encoded(lambda s: GradientBoostingClassifier(n_estimators=15, random_state=s)),
    "scaled gradient boosting": lambda: encoded(
        lambda s: GradientBoostingClassifier(n_estimators=15, random_state=s), encoder=one_hot(), numbers=scaled()
    ),
}


def judged(make, X, y, n=3, classes=None):
    """Black boxes of models fitted to resampled rows, and the space of the rows."""
    space = TabularSpace.fit(schema_with_gaps(X), X)
    rng = np.random.default_rng(1)
    resamples = [rng.integers(len(X), size=len(X)) for _ in range(n)]
    classes = np.unique(y) if classes is None else classes
    models = [make(s).fit(X.iloc[rows], y[rows]) for s, rows in enumerate(resamples)]
    return [BlackBox(model, X, classes=classes, space=space) for model in models], space.encoding


def probes(boxes, encoding, X, n=1500):
    """Crossed rows with missing values where they may be, and with numbers at thresholds or beside them."""
    rng, sample = np.random.default_rng(2), read_values(X, encoding.schema)
    numbers, choices = (
        np.take_along_axis(part, rng.integers(len(X), size=(n, part.shape[1])), axis=0)
        for part in (sample.numbers, sample.choices)
    )
    cuts = Judges(boxes, encoding).thresholds()
    for i, feature in enumerate(encoding.numeric):
        if feature.name in cuts:
            at, side = rng.choice(cuts[feature.name], n), rng.integers(-1, 2, n)
            beside = (
                at + side
                if feature.step
                else np.where(side == 0, at, np.nextafter(at, np.where(side < 0, -np.inf, np.inf)))
            )
            numbers[:, i] = np.where(rng.random(n) < 0.6, beside, numbers[:, i])
    return Values(numbers, choices)


def assert_same(boxes, encoding, values, tolerance=1e-6):
    found = Judges(boxes, encoding).probabilities(values)
    frame = new_frame(encoding, values)
    for box, own in zip(boxes, found, strict=True):
        np.testing.assert_allclose(own, box.predict_proba(frame), rtol=0, atol=tolerance)


class TestTheyAreTheModels:
    @pytest.mark.parametrize("n_classes", [2, 3])
    @pytest.mark.parametrize(
        ("name", "missing"),
        [*((name, gap) for name in MODELS for gap in (False, True)), *((n, False) for n in COMPLETE)],
    )
    def test_probabilities_at_random_values_and_at_thresholds(self, name, missing, n_classes):
        X, score = table(missing=missing)
        boxes, encoding = judged({**MODELS, **COMPLETE}[name](), X, labels(score, n_classes))
        assert Judges(boxes, encoding).n_compiled == len(boxes)
        # XGBoost adds float32 numbers; all others must agree to the last digits of float64.
        assert_same(boxes, encoding, probes(boxes, encoding, X), 1e-6 if "xgboost" in name else 1e-13)

    @pytest.mark.parametrize("seed", range(3))
    @pytest.mark.parametrize("library", ["xgboost", "lightgbm"])
    def test_other_tables_and_texts_as_objects(self, library, seed):
        X, score = table(seed + 10, missing=True)
        boxes, encoding = judged(boosting(library), X, labels(score, 2), n=1)
        assert Judges(boxes, encoding).n_compiled == 1
        assert_same(boxes, encoding, probes(boxes, encoding, X))

    @pytest.mark.parametrize("categories", ["str", "object"])
    def test_texts_that_are_not_categories(self, categories):
        X, score = table(missing=True, categories=categories)
        boxes, encoding = judged(MODELS["forest"](), X, labels(score, 2))
        assert Judges(boxes, encoding).n_compiled == 3
        assert_same(boxes, encoding, probes(boxes, encoding, X), 0)

    def test_many_leaves_take_several_words(self):
        X, score = table()
        library = pytest.importorskip("lightgbm")
        boxes, encoding = judged(
            lambda s: library.LGBMClassifier(
                n_estimators=9, num_leaves=150, min_child_samples=1, min_child_weight=0, n_jobs=1, verbose=-1
            ),
            X,
            labels(score, 2),
        )
        Judges(boxes, encoding)
        assert max(compiled.n_leaves.max() for box in boxes for _, compiled in box._compiled) > 64
        assert_same(boxes, encoding, probes(boxes, encoding, X), 1e-13)

    @pytest.mark.parametrize("word", [_SMALL, _LARGE])
    def test_the_lowest_bit_of_any_word_has_a_place_of_its_own(self, word):
        rng, counts = np.random.default_rng(0), np.arange(word.leaves)
        above = rng.integers(0, 2**word.leaves, size=(50, word.leaves), dtype=np.uint64).astype(word.kind)
        words = (above << counts.astype(word.kind)) | (word.kind(1) << counts.astype(word.kind))
        assert (word.places(words) == word.place_of).all()
        assert len({0, *word.place_of.tolist()}) == word.leaves + 1
        assert word.places(np.zeros(1, word.kind)) == 0

    @pytest.mark.parametrize(("leaves", "word"), [(32, _SMALL), (33, _LARGE), (65, _LARGE)])
    def test_words_are_as_small_as_trees_allow(self, leaves, word):
        X, score = table()
        make = encoded(lambda s: DecisionTreeClassifier(max_leaf_nodes=leaves, random_state=s))
        boxes, encoding = judged(make, X, labels(score, 2))
        ((_, evaluator),) = Judges(boxes, encoding)._evaluators
        assert evaluator._word is word
        assert_same(boxes, encoding, probes(boxes, encoding, X), 0.0)

    def test_forests_add_in_their_own_order(self):
        """Ties of a forest are frequent, and must be broken as the forest breaks them."""
        X, score = table()
        boxes, encoding = judged(MODELS["deep forest"](), X, labels(score, 3))
        assert_same(boxes, encoding, probes(boxes, encoding, X), 0)

    def test_deep_forests_are_walked(self, monkeypatch):
        monkeypatch.setattr(compiled_trees, "_MOST_WORDS", 0)
        for name in ("deep forest", "scaled forest"):
            X, score = table(missing=True)
            boxes, encoding = judged(MODELS[name](), X, labels(score, 2))
            judges = Judges(boxes, encoding)
            assert judges.n_compiled == 3
            assert not any(isinstance(evaluator, TreeTables) for _, evaluator in judges._evaluators)
            assert_same(boxes, encoding, probes(boxes, encoding, X), 0)

    def test_early_stopping_ends_at_the_best_iteration(self):
        X, score = table()
        y, library = labels(score, 2), pytest.importorskip("xgboost")
        model = library.XGBClassifier(n_estimators=60, enable_categorical=True, early_stopping_rounds=2, n_jobs=1)
        model.fit(X[:200], y[:200], eval_set=[(X[200:], y[200:])], verbose=False)
        space = TabularSpace.fit(schema_with_gaps(X), X)
        boxes = [BlackBox(model, X, space=space)]
        assert Judges(boxes, space.encoding).n_compiled == 1
        assert_same(boxes, space.encoding, probes(boxes, space.encoding, X))

    def test_lightgbm_that_was_stored(self):
        X, score = table(missing=True)
        boxes, encoding = judged(MODELS["lightgbm"](), X, labels(score, 3), n=1)
        text = boxes[0].model.booster_.model_to_string()
        boxes.append(BlackBox(LightGBM(text, boxes[0].classes_), X, space=boxes[0].space_))
        judges = Judges(boxes, encoding)
        assert judges.n_compiled == 2
        found = judges.probabilities(read_values(X, encoding.schema))
        np.testing.assert_array_equal(found[0], found[1])

    def test_arrays_wrapped_models_and_classes_that_a_model_has_not_seen(self):
        X, score = table()
        X, y = X[["wide", "narrow"]].to_numpy(np.float64), labels(score, 3)
        frame = pd.DataFrame(X, columns=["x0", "x1"])
        space = TabularSpace.fit(schema_with_gaps(frame), frame)
        search = GridSearchCV(DecisionTreeClassifier(random_state=0), {"max_depth": [2, 4]}, cv=2).fit(X, y)
        few = RandomForestClassifier(7, max_depth=3, random_state=0).fit(X[y > 0], y[y > 0])
        boxes = [BlackBox(model, X, classes=[0, 1, 2], space=space) for model in (search, few)]
        judges = Judges(boxes, space.encoding)
        assert judges.n_compiled == 2
        assert_same(boxes, space.encoding, probes(boxes, space.encoding, frame), 0)
        assert (judges.probabilities(read_values(frame, space.schema))[1, :, 0] == 0).all()


class TestWhatDiffersIsRefused:
    @pytest.mark.parametrize(
        ("name", "wrong"),
        [
            ("lightgbm", lambda cuts: np.asarray(cuts, np.float64)),  # `<` for `<=`
            ("histogram", lambda cuts: np.asarray(cuts, np.float64)),
            ("forest", lambda cuts: np.asarray(cuts, np.float64) + 1e-4),
        ],
    )
    def test_wrong_cuts(self, name, wrong, monkeypatch):
        monkeypatch.setattr(trees, "_next", wrong)
        X, score = table()
        boxes, encoding = judged(MODELS[name](), X.round(1) if name != "forest" else X, labels(score, 2), n=1)
        assert Judges(boxes, encoding).n_compiled == 0

    def test_a_comparison_of_xgboost_that_includes_the_threshold(self, monkeypatch):
        own = trees._single
        monkeypatch.setattr(
            trees, "_single", lambda cuts: own(np.nextafter(cuts.astype(np.float32), np.float32(np.inf)))
        )
        X, score = table()
        boxes, encoding = judged(boosting("xgboost"), X, labels(score, 2), n=1)
        assert Judges(boxes, encoding).n_compiled == 0

    @pytest.mark.parametrize(
        "make",
        [
            encoded(lambda s: DecisionTreeClassifier(max_depth=4, random_state=s), numbers=PCA(2, svd_solver="full")),
            encoded(
                lambda s: DecisionTreeClassifier(max_depth=4, random_state=s), numbers=FunctionTransformer(np.negative)
            ),
            encoded(lambda s: LogisticRegression(), numbers=StandardScaler()),
        ],
        ids=["mixed columns", "decreasing", "no trees"],
    )
    def test_other_models_are_asked(self, make):
        X, score = table()
        boxes, encoding = judged(make, X, labels(score, 2))
        judges = Judges(boxes, encoding)
        assert (judges.n_compiled, judges.thresholds()) == (0, {})
        assert_same(boxes, encoding, probes(boxes, encoding, X), 0)

    def test_catboost_with_statistics_of_categories(self):
        library = pytest.importorskip("catboost")
        X, score = table(categories="str")
        boxes, encoding = judged(
            lambda s: library.CatBoostClassifier(
                iterations=9, cat_features=CHOICES, thread_count=1, verbose=0, allow_writing_files=False
            ),
            X,
            labels(score, 2),
        )
        assert Judges(boxes, encoding).n_compiled == 0
        assert_same(boxes, encoding, probes(boxes, encoding, X), 0)

    def test_linear_leaves_and_random_dropout(self):
        X, score = table()
        lightgbm, xgboost = pytest.importorskip("lightgbm"), pytest.importorskip("xgboost")
        for make in (
            lambda s: lightgbm.LGBMClassifier(n_estimators=5, linear_tree=True, n_jobs=1, verbose=-1),
            lambda s: xgboost.XGBClassifier(n_estimators=5, booster="dart", rate_drop=0.5, enable_categorical=True),
        ):
            boxes, encoding = judged(make, X, labels(score, 2), n=1)
            assert Judges(boxes, encoding).n_compiled == 0
            assert_same(boxes, encoding, probes(boxes, encoding, X))


class TestWhatIsAsked:
    def hypotheses(self, name="forest", **options):
        X, score = table(**options)
        boxes, encoding = judged(MODELS[name](), X, labels(score, 2))
        return BlackBoxPredictors(boxes), boxes, encoding, X

    def test_codes_do_not_call_the_models_and_bound_rows_do(self, monkeypatch):
        hypotheses, boxes, encoding, X = self.hypotheses()
        x = torch.from_numpy(encoding.encode(read_values(X, encoding.schema)))
        expected, before = hypotheses.probabilities(x), boxes[0].n_asked
        monkeypatch.setattr(boxes[0], "_predict", lambda frame: np.full((len(frame), 2), 0.5))
        assert torch.equal(hypotheses.probabilities(x), expected)
        assert boxes[0].n_asked == before + len(X)
        assert (hypotheses.bind_rows(X).probabilities(x)[0] == 0.5).all()
        assert torch.equal(hypotheses.subset(torch.tensor([2, 0])).probabilities(x), expected[[2, 0]])
        assert hypotheses.probabilities(x[:0]).shape == (3, 0, 2)

    def test_an_answer_does_not_depend_on_other_rows(self):
        hypotheses, _, encoding, X = self.hypotheses("deep forest", missing=True)
        x = torch.from_numpy(encoding.encode(read_values(X, encoding.schema)))
        alone = torch.cat([hypotheses.probabilities(row[None]) for row in x[:20]], dim=1)
        assert torch.equal(hypotheses.probabilities(x)[:, :20], alone)

    def test_thresholds_separate_what_a_tree_separates(self):
        X, score = table()
        boxes, _ = judged(MODELS["stump"](), X, labels(score, 2), n=1)
        hypotheses = BlackBoxPredictors(boxes)
        ((name, (cut,)),) = hypotheses.thresholds().items()
        rows = X.iloc[[0, 0]].assign(**{name: [cut - 1 if name == "whole" else np.nextafter(cut, -np.inf), cut]})
        below, at = boxes[0].predict_proba(rows)[:, 1]
        assert below != at
        stack = Stacked(nn.Sequential(nn.Flatten()), {})
        assert stack.thresholds() == {}
        for other in (Joined([stack, hypotheses]), OnDevice(hypotheses, "cpu")):
            assert {key: list(value) for key, value in other.thresholds().items()} == {name: [cut]}

    def test_thresholds_of_whole_numbers_are_whole(self):
        hypotheses, *_ = self.hypotheses("lightgbm")
        cuts = hypotheses.thresholds()
        assert (np.diff(cuts["wide"]) > 0).all()
        assert (cuts["whole"] == np.rint(cuts["whole"])).all()
        assert "fixed" not in cuts

    @pytest.mark.parametrize("missing", [False, True])
    @pytest.mark.parametrize("categories", ["category", "str", "object"])
    def test_frames_are_those_of_decoded_rows(self, categories, missing):
        X, _ = table(missing=missing, categories=categories)
        X["answer"] = np.tile([0, 1], ROWS // 2)
        X["bit"] = np.tile([True, False], ROWS // 2)
        schema = schema_with_gaps(X)
        space = TabularSpace.fit(schema, X)
        box = BlackBox(lambda rows: np.full(len(rows), 0.5), X, space=space)
        values = read_values(X, space.schema)
        made = _Frames.of(box, space.encoding).make(values)
        pd.testing.assert_frame_equal(
            made, box.frame_of(space.decode(space.encode(values))), check_exact=False, atol=1e-5
        )
        pd.testing.assert_frame_equal(made, box.frame_of(new_frame(space.encoding, values)))
        assert _Frames.of(box, space.encoding) is _Frames.of(box, space.encoding)
