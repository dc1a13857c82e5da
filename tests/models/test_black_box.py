"""Models that can only be asked: trees, functions, files; their students, and answers counted again by hand."""

import pickle
import sys
import warnings
from dataclasses import replace

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given as over
from hypothesis import settings
from sklearn.compose import make_column_transformer
from sklearn.ensemble import HistGradientBoostingClassifier, RandomForestClassifier
from sklearn.exceptions import NotFittedError
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, OrdinalEncoder, PolynomialFeatures, StandardScaler
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier
from strategies import cells, complaints, tables
from torch import nn

from avcg import (
    AVCG,
    BlackBox,
    Classifier,
    FiniteSet,
    PointMass,
    Recipe,
    Refinement,
    Schema,
    TabularSpace,
    from_models,
    retrains,
    toys,
)
from avcg.baselines.nearest import NearestUnlike, RobustNeighbour
from avcg.errors import DataError, MissingExtraError, SettingError
from avcg.hypotheses import retrains as retraining
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.predictors import Joined, OnDevice, Opaque, Stacked
from avcg.hypotheses.split import HypothesisSplit
from avcg.method import distillation
from avcg.method.config import CalibrationConfig, DiagnosticsConfig, DistillationConfig, SearchConfig
from avcg.method.deployed import DeployedModel
from avcg.method.distillation import Distillation
from avcg.method.objective import target_log_probs
from avcg.method.query import Query
from avcg.method.risk import lower_log_odds
from avcg.models.networks import draw_state, mlp
from avcg.models.piecewise_linear import PiecewiseLinearEncoding
from avcg.models.stacked_fit import fit_stacked
from avcg.models.training import Training
from avcg.space.images import ImageSpace
from avcg.testing import check_explainer, check_hypotheses

TOY = toys.loans(n=300)
Y = TOY.y
NAMES = np.where(Y == 1, "approve", "reject")
NUMBERS = TOY.X[["income", "months"]]
# Every kind of column, with one that follows another.
X = TOY.X.assign(
    housing=TOY.X["housing"].astype("category"), deposit=TOY.X["housing"].map({"own": 2, "rent": 1, "free": 0})
)
SCHEMA = Schema.infer(X).only_up("months").forbid("housing", "own", "rent").freeze("owns").link("housing", "deposit")
# Students of small trees on a toy need a part of what others need.
SHORT = Recipe(
    steps=80,
    layers=(32, 32),
    search=SearchConfig(retry_neighbours=8, retry_margins=(0.0, 1.5)),
    calibration=CalibrationConfig(
        n_margins=3, min_rows=30, refine_rows=9, refine_levels=(-1.0, 0.0, 1.0, 2.0)
    ),
    diagnostics=DiagnosticsConfig(rows=50),
    distillation=DistillationConfig(
        rounds=2, attempts=300, first_epochs=20, later_epochs=8, first_learning_rate=5e-3, later_learning_rate=2e-3,
        batch_size=128, crossed_rows=500,
    ),
)  # fmt: skip
TREE = DecisionTreeClassifier(max_depth=4, random_state=0).fit(NUMBERS, Y)
TABLE_TREE = DecisionTreeClassifier(max_depth=4, random_state=0).fit(NUMBERS.to_numpy(), Y)


def fitted(explainer, rows):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # so short a training may not keep its promise
        return explainer.fit(rows)


def columns(kind=OrdinalEncoder):
    encoder = kind(**({"handle_unknown": "ignore"} if kind is OneHotEncoder else {}))
    return make_column_transformer((encoder, ["housing", "rating"]), remainder="passthrough")


def boosted(kind):
    if kind == "tree":
        return make_pipeline(columns(), DecisionTreeClassifier(max_depth=4, random_state=0))
    if kind == "boosting":
        return HistGradientBoostingClassifier(
            max_iter=12, max_depth=3, categorical_features="from_dtype", random_state=0
        )
    library = pytest.importorskip(kind)
    if kind == "lightgbm":
        return library.LGBMClassifier(n_estimators=12, max_depth=3, min_child_samples=5, n_jobs=1, verbose=-1)
    return library.XGBClassifier(n_estimators=12, max_depth=3, enable_categorical=True, n_jobs=1)


def income_rule(rows):
    return 1 / (1 + np.exp(-(rows["income"].to_numpy() - 50) / 5))


def constant(value):
    return lambda rows: np.tile(value, (len(rows), 1))


class TestEveryKindOfModel:
    @pytest.mark.parametrize("kind", ["tree", "boosting", "xgboost", "lightgbm"])
    def test_an_estimator_on_frames(self, kind):
        model = boosted(kind).fit(X, Y)
        box = BlackBox(model, X)
        assert box.classes_.tolist() == [0, 1]
        np.testing.assert_allclose(box.predict_proba(X), model.predict_proba(X), atol=1e-7)
        assert (box.predict(X) == model.predict(X)).all()
        turned = X[X.columns[::-1]].assign(noise=1)
        np.testing.assert_array_equal(box.predict_proba(turned), box.predict_proba(X))

    @pytest.mark.parametrize("kind", ["tree", "xgboost", "lightgbm"])
    def test_an_estimator_on_tables_of_numbers(self, kind):
        table = NUMBERS.to_numpy()
        model = (TREE if kind == "tree" else boosted(kind)).__sklearn_clone__().fit(table, Y)
        box = BlackBox(model, table)
        np.testing.assert_array_equal(box.predict_proba(table), model.predict_proba(table))
        codes = box.space_.encode(pd.DataFrame(table, columns=["x0", "x1"]))
        found = PointMass(box).predictors.log_probs(codes).exp()[0]
        np.testing.assert_allclose(found, model.predict_proba(table), atol=1e-6)

    def test_a_function_of_all_classes_and_of_the_second(self):
        second = BlackBox(income_rule, NUMBERS)
        both = BlackBox(lambda rows: np.column_stack([1 - income_rule(rows), income_rule(rows)]), NUMBERS)
        column = BlackBox(lambda rows: income_rule(rows)[:, None], NUMBERS)
        series = BlackBox(lambda rows: pd.Series(income_rule(rows), rows.index), NUMBERS)
        three = BlackBox(constant([0.2, 0.5, 0.3]), NUMBERS)
        for box in (second, both, column, series):
            assert box.classes_.tolist() == [0, 1]
            np.testing.assert_allclose(box.predict_proba(NUMBERS)[:, 1], income_rule(NUMBERS))
        assert three.predict(NUMBERS.head(2)).tolist() == [1, 1]
        assert repr(second) == "BlackBox(The function income_rule, classes 0, 1)"

    def test_a_function_may_write_into_its_frame(self):
        def spoils(rows):
            rows["income"] = 0.0
            rows["more"] = 1.0
            return np.zeros(len(rows))

        pair = from_models([BlackBox(spoils, NUMBERS), BlackBox(income_rule, NUMBERS)], NUMBERS)
        before = NUMBERS.copy()
        found = pair.predictors.bind_rows(NUMBERS).probabilities(pair.space.encode(NUMBERS))
        np.testing.assert_array_equal(found[1, :, 1], income_rule(NUMBERS))
        pd.testing.assert_frame_equal(NUMBERS, before)

    def test_polars_rows(self):
        box = BlackBox(boosted("tree").fit(X, Y), X)
        frame = pl.from_pandas(X)
        np.testing.assert_array_equal(box.predict_proba(frame), box.predict_proba(X))
        learnt = BlackBox(income_rule, pl.from_pandas(NUMBERS))
        np.testing.assert_array_equal(
            learnt.predict_proba(NUMBERS), BlackBox(income_rule, NUMBERS).predict_proba(NUMBERS)
        )

    def test_polars_rows_without_what_polars_needs(self, monkeypatch):
        rows = pl.from_pandas(NUMBERS)

        def refuses(*_):
            raise ModuleNotFoundError("pyarrow is required")

        monkeypatch.setattr(pl.DataFrame, "to_pandas", refuses)
        with pytest.raises(DataError, match=r"with pandas frames, and polars cannot make one: pyarrow is required"):
            BlackBox(TREE, NUMBERS).predict_proba(rows)

    def test_categories_in_another_order_are_read_by_name(self):
        box = BlackBox(lambda rows: (rows["housing"].cat.codes == 0) * 1.0, X)
        turned = X.assign(housing=X["housing"].cat.set_categories(["rent", "own", "free"]))
        assert turned["housing"].dtype == X["housing"].dtype, "so says pandas"
        np.testing.assert_array_equal(box.predict_proba(turned), box.predict_proba(X))

    def test_a_class_that_a_model_lacks(self):
        three = np.where(NUMBERS["income"] > 60, 2, Y)
        model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(NUMBERS[three != 1], three[three != 1])
        box = BlackBox(model, NUMBERS, classes=[0, 1, 2])
        found = box.predict_proba(NUMBERS)
        assert (found[:, 1] == 0).all()
        np.testing.assert_array_equal(found[:, [0, 2]], model.predict_proba(NUMBERS))
        full = DecisionTreeClassifier(max_depth=3, random_state=0).fit(NUMBERS, three)
        pair = from_models([model, full], NUMBERS)
        assert pair.classes.tolist() == [0, 1, 2]
        assert (pair.predictors.log_probs(pair.space.encode(NUMBERS))[0, :, 1] < -60).all()

    def test_the_order_of_classes_is_the_users(self):
        unsorted = ["reject", "approve"]
        rule = BlackBox(income_rule, NUMBERS, classes=unsorted)
        assert rule.classes_.tolist() == unsorted
        assert rule.predict(NUMBERS.head(50)).tolist() == [
            unsorted[int(p > 0.5)] for p in income_rule(NUMBERS.head(50))
        ]
        tree = DecisionTreeClassifier(max_depth=4, random_state=0).fit(NUMBERS, NAMES)
        named = BlackBox(tree, NUMBERS, classes=unsorted)
        clear = tree.predict_proba(NUMBERS)[:, 0] != 0.5  # a tie goes to the class that comes first
        assert (named.predict(NUMBERS) == tree.predict(NUMBERS))[clear].all()
        alone, pair = PointMass(rule), from_models([rule, tree], NUMBERS, deployed=tree)
        assert alone.classes.tolist() == pair.classes.tolist() == unsorted
        explainer = NearestUnlike(alone).fit(NUMBERS)
        delivered = explainer.generate(NUMBERS.head(40))
        assert ((rule.predict(delivered.frame) == delivered.target) == (delivered.status == "ok")).all()
        assert (delivered.status == "ok").mean() > 0.9
        today = explainer.judged_by(from_models([named], NUMBERS, deployed=tree, space=explainer.space_))
        delivered = today.generate(NUMBERS.head(40))
        assert ((named.predict(delivered.frame) == delivered.target) == (delivered.status == "ok")).all()
        assert delivered.certificate is None
        with pytest.raises(SettingError, match="same classes"):
            explainer.judged_by(from_models([tree], NUMBERS, space=explainer.space_))

    def test_labels_of_another_dtype_are_the_same_labels(self):
        one = DecisionTreeClassifier(max_depth=2, random_state=0).fit(NUMBERS, NAMES)
        other = DecisionTreeClassifier(max_depth=3, random_state=0).fit(NUMBERS, pd.Series(NAMES, dtype=object))
        assert one.classes_.dtype.kind != other.classes_.dtype.kind
        assert from_models([one, other], NUMBERS).classes.tolist() == ["approve", "reject"]

    def test_each_model_reads_its_own_columns(self):
        narrow = DecisionTreeClassifier(max_depth=2, random_state=0).fit(NUMBERS[["months"]], Y)
        turned = DecisionTreeClassifier(max_depth=2, random_state=0).fit(NUMBERS[["months", "income"]], Y)
        boxes = [
            BlackBox(TREE, NUMBERS),
            BlackBox(narrow, NUMBERS[["months"]]),
            BlackBox(turned, NUMBERS[::-1][turned.feature_names_in_]),
        ]
        three = from_models(boxes, NUMBERS)
        found = three.predictors.probabilities(three.space.encode(NUMBERS))
        for s, (model, names) in enumerate(
            [(TREE, ["income", "months"]), (narrow, ["months"]), (turned, ["months", "income"])]
        ):
            np.testing.assert_allclose(found[s], model.predict_proba(NUMBERS[names]))

    def test_all_rows_asked_are_counted(self):
        seen = []

        def counts(rows):
            seen.append(len(rows))
            return income_rule(rows)

        one, two = BlackBox(counts, NUMBERS), BlackBox(counts, NUMBERS)
        assert one.n_asked == sum(seen) / 2 == 2
        both = BlackBoxPredictors([one, two])
        both.log_probs(one.space_.encode(NUMBERS.head(7)))
        both.subset(torch.tensor([1])).log_probs(one.space_.encode(NUMBERS.head(5)))
        assert (one.n_asked, two.n_asked) == (9, 14)
        assert both.boxes == OnDevice(Joined([both]), "cpu").boxes == {one, two}
        fitted(AVCG(PointMass(one), recipe=replace(SHORT, steps=20, layers=(8,))), NUMBERS).generate(
            NUMBERS.head(5), refine=True
        )
        assert one.n_asked + two.n_asked == sum(seen)
        copies = from_models([one, two], NUMBERS)
        copies.predictors.log_probs(one.space_.encode(NUMBERS.head(5)))
        assert [box.n_asked for box in copies.predictors.members] == [5, 5]

    def test_copies_and_files_say_the_same(self):
        for made in (BlackBox(TREE, NUMBERS), BlackBox(income_rule, NUMBERS), BlackBox(TABLE_TREE, NUMBERS.to_numpy())):
            back = pickle.loads(pickle.dumps(made))
            rows = NUMBERS if made.dtypes.index[0] == "income" else NUMBERS.to_numpy()
            np.testing.assert_array_equal(back.predict_proba(rows), made.predict_proba(rows))

    def test_no_rows_are_no_question(self):
        box = BlackBox(TREE, NUMBERS)
        assert box.predict_proba(NUMBERS.head(0)).shape == (0, 2)
        assert BlackBoxPredictors([box, box]).log_probs(torch.zeros(0, 2)).shape == (2, 0, 2)
        assert box.n_asked == 2

    @settings(max_examples=40)
    @over(tables(constrained=False))
    def test_codes_become_rows_as_the_model_was_trained_on(self, table):
        box = BlackBox(constant([0.5, 0.5]), table.frame, schema=table.schema)
        frame = table.frame if isinstance(table.frame, pd.DataFrame) else table.frame.to_pandas()
        found = box.frame_of(box.space_.decode(box.space_.encode(table.frame)))
        assert found.dtypes.equals(frame[found.columns].dtypes)
        for name in frame.columns:
            blur = 1e-6 * max(abs(v) if isinstance(v, float) else 0.0 for v in cells(frame, name))  # of float32 codes
            for before, after in zip(cells(frame, name), cells(found, name), strict=True):
                close = isinstance(before, float) and after == pytest.approx(before, rel=1e-6, abs=blur)
                assert close or before == after

    def test_the_contract_of_hypotheses(self):
        trees = from_models([boosted("tree").fit(X[i::2], Y[i::2]) for i in range(2)], X, schema=SCHEMA)
        check_hypotheses(trees, trees.space.encode(X.head(20)))


@pytest.fixture(scope="module")
def onnx_files(tmp_path_factory):
    pytest.importorskip("onnxruntime")
    convert = pytest.importorskip("skl2onnx").to_onnx
    from skl2onnx.common.data_types import FloatTensorType, Int64TensorType, StringTensorType

    folder = tmp_path_factory.mktemp("onnx")
    frame = TOY.X.astype({"rating": str})
    prepare = make_column_transformer(
        (OneHotEncoder(), ["housing", "rating"]), (StandardScaler(), ["income", "months"])
    )
    mixed = make_pipeline(prepare, LogisticRegression()).fit(frame, NAMES)
    kinds = {
        "income": FloatTensorType,
        "months": Int64TensorType,
        "housing": StringTensorType,
        "rating": StringTensorType,
    }
    inputs = [(name, kind([None, 1])) for name, kind in kinds.items()]
    table = NUMBERS.to_numpy(np.float32)
    plain = RandomForestClassifier(5, max_depth=3, random_state=0).fit(table, Y)
    files = {"mixed": (mixed, frame, {"initial_types": inputs}), "plain": (plain, table, {"X": table[:1]})}
    made = {}
    for name, (model, rows, options) in files.items():
        for zipped in (True, False):
            path = folder / f"{name}-{zipped}.onnx"
            path.write_bytes(convert(model, options={"zipmap": zipped}, **options).SerializeToString())
            made[name, zipped] = path, model, rows
    return made


class TestOnnx:
    @pytest.mark.parametrize("zipped", [True, False])
    def test_one_input_for_each_column(self, onnx_files, zipped):
        path, model, frame = onnx_files["mixed", zipped]
        box = BlackBox(path, frame, classes=["approve", "reject"])
        np.testing.assert_allclose(box.predict_proba(frame), model.predict_proba(frame), atol=1e-5)
        turned = BlackBox(str(path), frame[frame.columns[::-1]], classes=["approve", "reject"])
        np.testing.assert_allclose(turned.predict_proba(frame), model.predict_proba(frame), atol=1e-5)
        assert "mixed" in repr(box)

    @pytest.mark.parametrize("zipped", [True, False])
    def test_one_table_of_numbers(self, onnx_files, zipped):
        path, model, table = onnx_files["plain", zipped]
        for rows in (table, NUMBERS):
            box = BlackBox(path, rows)
            assert box.classes_.tolist() == [0, 1]
            np.testing.assert_allclose(box.predict_proba(rows), model.predict_proba(table), atol=1e-5)
        named = BlackBox(path, table, classes=["no", "yes"])
        assert (named.predict(table) == np.where(model.predict(table) == 1, "yes", "no")).all()

    def test_labels_in_the_file_are_followed_by_name(self, onnx_files):
        path, model, frame = onnx_files["mixed", True]
        assert BlackBox(path, frame).classes_.tolist() == ["approve", "reject"]
        turned = BlackBox(path, frame, classes=["reject", "approve"])
        assert (turned.predict(frame) == model.predict(frame)).all()

    def test_explained_from_end_to_end(self, onnx_files):
        path, model, frame = onnx_files["mixed", False]
        box = BlackBox(path, frame, classes=["approve", "reject"])
        explainer = fitted(AVCG(PointMass(box), TOY_SCHEMA, recipe=SHORT), frame)
        denied = frame[model.predict(frame) == "reject"].head(30)
        delivered = explainer.generate(denied, target="approve")
        assert delivered.certificate is None
        assert ((model.predict(delivered.frame) == "approve") == (delivered.status == "ok")).all()
        assert (delivered.status == "ok").mean() > 0.8
        assert complaints(TOY_SCHEMA, frame, denied, delivered.frame) == []

    def test_bad_files(self, onnx_files, tmp_path, monkeypatch):
        path, _, frame = onnx_files["mixed", True]
        with pytest.raises(DataError, match=r"There is no file .*absent.onnx"):
            BlackBox(tmp_path / "absent.onnx", frame)
        damaged = tmp_path / "damaged.onnx"
        damaged.write_bytes(path.read_bytes()[:200])
        with pytest.raises(DataError, match=r"damaged.onnx is no ONNX model that can be run"):
            BlackBox(damaged, frame)
        with pytest.raises(DataError, match=r"reads 'months', which is no column. There are 'income', 'age'"):
            BlackBox(path, frame.rename(columns={"months": "age"}))
        with pytest.raises(DataError, match=r"mixed-True.onnx failed on 2 rows: .*could not convert"):
            BlackBox(path, frame.assign(income="much"))
        with pytest.raises(DataError, match=r"must return probabilities of shape \(2, 3\). Got \(2, 2\)"):
            BlackBox(path, frame, classes=["a", "b", "c"])
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'avcg\[onnx\]'"):
            BlackBox(path, frame)


TOY_SCHEMA = Schema.infer(TOY.X.astype({"rating": str})).only_up("months").freeze("owns")


def box(model=income_rule, rows=NUMBERS, **options):
    return lambda: BlackBox(model, rows, **options)


def later(value, rows=None):
    """A function that is fine at first."""
    calls = []

    def answers(frame):
        calls.append(1)
        return income_rule(frame) if len(calls) == 1 else value(frame)

    return lambda: BlackBox(answers, NUMBERS).predict_proba(NUMBERS if rows is None else rows)


def midway(frame):
    raise RuntimeError("the server is gone")


WRONG = {
    "no numbers": (
        later(lambda rows: np.full(len(rows), np.nan)),
        DataError,
        r"answers returned probabilities that are no numbers for 300 rows, e.g. \[nan, nan\]. Give it rows",
    ),
    "no sum of one": (box(constant([0.4, 0.4])), DataError, r"for 2 rows, e.g. \[0.4, 0.4\]: they must be >= 0"),
    "negative": (box(constant([-0.2, 1.2])), DataError, r"\[-0.2, 1.2\]: they must be >= 0 and sum to one"),
    "log-odds of a yes": (later(lambda rows: np.full(len(rows), 3.5)), DataError, r"\[-2.5, 3.5\]"),
    "three axes": (box(lambda rows: np.ones((len(rows), 2, 2))), DataError, r"shape \(2, 2\). Got \(2, 2, 2\)"),
    "too few rows": (later(lambda rows: [0.5]), DataError, r"probabilities of shape \(300, 2\). Got \(1,\)"),
    "too few classes": (box(classes=["a", "b", "c"]), DataError, r"shape \(2, 3\). Got \(2,\) instead"),
    "texts": (box(lambda rows: ["yes"] * len(rows)), DataError, "failed on 2 rows: ValueError: could not convert"),
    "it fails at once": (box(midway), DataError, "midway failed on 2 rows: RuntimeError: the server is gone"),
    "it fails later": (later(midway), DataError, "answers failed on 300 rows: RuntimeError: the server is gone"),
    "not fitted": (box(DecisionTreeClassifier()), SettingError, "Classifier is not fitted yet.*Call its fit"),
    "a search not fitted": (
        box(GridSearchCV(DecisionTreeClassifier(), {"max_depth": [2]})), SettingError, "GridSearchCV is not fitted"
    ),
    "no probabilities": (
        box(LinearSVC(random_state=0).fit(NUMBERS, Y)), SettingError, "A LinearSVC cannot be asked.*wrap it, e.g. in"
    ),
    "neither": (box(42), SettingError, "A int cannot be asked: it has no predict_proba and is no function"),
    "a missing column": (
        lambda: box()().predict_proba(NUMBERS.drop(columns="months")),
        DataError,
        "income_rule reads column 'months', which these rows do not have. There is: 'income'",
    ),
    "a renamed column": (
        lambda: box()().predict_proba(NUMBERS.rename(columns={"months": "month"})),
        DataError,
        "reads column 'months'.*Did you mean 'month'",
    ),
    "an unknown category": (
        lambda: box(rows=X)().predict_proba(X.assign(housing="castle")),
        DataError,
        "does not know the value 'castle' of column 'housing'. It knows 'free', 'own', 'rent'",
    ),
    "half a month": (
        lambda: box()().predict_proba(NUMBERS.assign(months=2.5)),
        DataError,
        "reads column 'months' as int64, which cannot hold 2.5. Convert",
    ),
    "texts for booleans": (
        lambda: box(rows=X)().predict_proba(X.assign(owns="False")),
        DataError,
        "reads column 'owns' as bool, which cannot hold 'False'",
    ),
    "texts for numbers": (
        lambda: box()().predict_proba(NUMBERS.assign(income="much")),
        DataError,
        "reads column 'income' as float64, and these rows do not fit: .*'much'",
    ),
    "a gap that it cannot read": (
        lambda: box(LogisticRegression().fit(NUMBERS, Y))().predict_proba(NUMBERS.assign(months=np.nan)),
        DataError,
        "LogisticRegression failed on 300 rows: ValueError: Input X contains NaN",
    ),
    "no rows": (box(rows=NUMBERS.head(0)), DataError, "The frame has no rows"),
    "no frame": (box(rows=[[1, 2]]), DataError, "DataFrame. Got list instead"),
    "a column twice": (box(rows=pd.concat([NUMBERS, NUMBERS], axis=1)), DataError, "'income', 'months' twice"),
    "a schema and a space": (
        box(schema=TOY.schema, space=TabularSpace.fit(TOY.schema, TOY.X)), SettingError, "the one or the other"
    ),
    "a class twice": (box(classes=["a", "a"]), SettingError, r"must be different labels, in a list. Got \['a', 'a'\]"),
    "a single class": (
        box(DecisionTreeClassifier(random_state=0).fit(NUMBERS, np.ones(300))),
        SettingError,
        r"knows no class but 1.0.*name all: BlackBox\(model, X, classes=",
    ),
    "classes in a text": (box(classes="ab"), SettingError, "must be different labels, in a list. Got 'ab'"),
    "other names for classes": (
        box(TREE, classes=["no", "yes"]),
        SettingError,
        r"speaks of the classes 0, 1, which are not among 'no', 'yes'. To call.*BlackBox\(model.predict_proba",
    ),
    "given: none": (lambda: from_models([], NUMBERS), SettingError, "must be at least one. Got none"),
    "given: a schema and a space": (
        lambda: from_models([TREE], NUMBERS, schema=TOY.schema, space=TabularSpace.fit(TOY.schema, TOY.X)),
        SettingError,
        "Give the one or the other",
    ),
    "given: other classes": (
        lambda: from_models([TREE, BlackBox(income_rule, NUMBERS, classes=["no", "yes"])], NUMBERS),
        SettingError,
        r"must speak of the same classes. Got \[0, 1\], \['no', 'yes'\]",
    ),
    "given: classes unknown": (
        lambda: from_models([income_rule], NUMBERS), SettingError,
        r"function does not say its classes. Fit it, or wrap it"
    ),
    "nothing asked": (lambda: BlackBoxPredictors([]), SettingError, "at least one model to ask"),
    "other rows than seen": (
        lambda: BlackBoxPredictors([box()()]).bind_rows(NUMBERS.head(3)).log_probs(torch.zeros(4, 2)),
        DataError,
        "to be asked about 3 rows. Got codes of 4",
    ),
    "a row in a dictionary": (
        lambda: NearestUnlike(PointMass(box()())).fit(NUMBERS).generate(NUMBERS.iloc[0].to_dict()),
        DataError,
        "pandas or polars DataFrame. Got dict instead",
    ),
    "a bare estimator": (lambda: PointMass(TREE), SettingError, r"Ask it as it is, with avcg.BlackBox\(model, X\)"),
    "a list of judges": (
        lambda: NearestUnlike(PointMass(box()())).fit(NUMBERS).judged_by([TREE]),
        SettingError,
        r"must be a set of models. Got a list; make one with avcg.from_models\(models, X, space=",
    ),
    "judges of another space": (
        lambda: NearestUnlike(PointMass(box()())).fit(NUMBERS).judged_by(from_models([TREE], NUMBERS.head(50))),
        SettingError,
        "differ in column 'income'. Give them one space",
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_people_get_wrong(case):
    action, error, message = WRONG[case]
    with pytest.raises(error, match=message):
        action()


def test_a_model_that_fails_in_the_middle_leaves_the_explainer_as_it_was():
    alive = [True]

    def may_fail(rows):
        if not alive[0] and len(rows) > 100:
            raise ConnectionError("the line is dead")
        return income_rule(rows)

    never = AVCG(PointMass(BlackBox(may_fail, NUMBERS)), recipe=replace(SHORT, steps=20, layers=(8,)))
    once = fitted(AVCG(PointMass(BlackBox(may_fail, NUMBERS)), recipe=replace(SHORT, steps=20, layers=(8,))), NUMBERS)
    before = once.generate(NUMBERS.head(9)).to_json()
    alive[0] = False
    for explainer in (never, once):
        with pytest.raises(DataError, match=r"may_fail failed on .* rows: ConnectionError: the line is dead"):
            explainer.fit(NUMBERS)
    alive[0] = True
    with pytest.raises(NotFittedError):
        never.generate(NUMBERS.head(9))
    assert once.generate(NUMBERS.head(9)).to_json() == before


class TestWhatIsReportedIsOfTheRowsThemselves:
    """A serial number whose last digits no float32 code holds decides everything."""

    ROWS = pd.DataFrame(
        {
            "serial": np.random.default_rng(0).random(120),
            "wish": np.random.default_rng(1).integers(0, 50, 120),
        }
    )

    @staticmethod
    def digits(k):
        return lambda rows: (rows["serial"].to_numpy() * 1e9 * k + 0.37 * rows["wish"].to_numpy()) % 1.0

    def boxes(self, count):
        schema = Schema.infer(self.ROWS).freeze("serial")
        return [BlackBox(self.digits(1 + k), self.ROWS, schema=schema) for k in range(count)]

    def test_probabilities_and_certificates(self):
        first, *others = self.boxes(9)
        hypotheses = from_models(others, self.ROWS, deployed=first, space=first.space_)
        explainer = RobustNeighbour(hypotheses, survival=0.5).fit(self.ROWS)
        codes = explainer.space_.decode(explainer.space_.encode(self.ROWS))
        assert np.abs(first.predict_proba(codes) - first.predict_proba(self.ROWS)).max() > 0.3, "codes lose it"
        delivered = explainer.generate(self.ROWS, n=2)
        np.testing.assert_array_equal(
            delivered.probability_before, first.predict_proba(self.ROWS)[np.arange(120), delivered.target]
        )
        each = np.repeat(delivered.target, 2)
        after = first.predict_proba(delivered.frame)
        np.testing.assert_array_equal(delivered.probability, after[np.arange(240), each])
        fresh = explainer.split_.test
        agree = sum(one.predict(delivered.frame) == each for one in fresh.members)
        np.testing.assert_array_equal(delivered.certificate.agreeing, agree)
        already = np.repeat(first.predict(self.ROWS) == delivered.target, 2)
        valid, robust = after.argmax(axis=1) == each, delivered.certificate.share >= 0.5
        expected = np.select([already, ~valid, ~robust], ["already_target", "not_valid", "not_robust"], "ok")
        assert (delivered.statuses == expected).all()

    def test_groups_and_remote_ones_pass_it_on(self):
        one, two = (BlackBoxPredictors([box]) for box in self.boxes(2))
        codes = one.members[0].space_.encode(self.ROWS)
        flat = Stacked(mlp(2, 2, (4,)), {})
        both = Joined([flat, one, two]).subset(torch.tensor([2, 0, 1]))
        expected = [box.predict_proba(self.ROWS) for box in (two.members[0], one.members[0])]
        for group in (both, OnDevice(both, "cpu"), Joined([OnDevice(both, "cpu")])):
            seen = group.bind_rows(self.ROWS)
            np.testing.assert_array_equal(seen.probabilities(codes)[[0, 2]], expected)
            np.testing.assert_allclose(seen.log_probs(codes).exp()[[0, 2]], expected, atol=1e-6)
            assert torch.equal(seen.log_probs(codes)[1], flat.log_probs(codes)[0])
            assert not np.allclose(group.probabilities(codes)[[0, 2]], expected, atol=0.1), "the other one is unbound"
            with pytest.raises(DataError, match=r"about 120 rows. Got codes of 3"):
                seen.log_probs(codes[:3])

    @pytest.mark.parametrize("threshold", [0.1, 0.2, 0.3, 0.4, 0.6, 0.7])
    def test_exactly_at_the_threshold_is_a_yes(self, threshold):
        box = BlackBox(lambda rows: np.where(rows["months"] > 50, threshold, 0.05), NUMBERS)
        alone = PointMass(box)
        deployed, x = DeployedModel(alone.predictors, threshold), alone.space.encode(NUMBERS)
        yes = (NUMBERS["months"] > 50).to_numpy()
        assert (deployed.decide(deployed.probabilities(x)).numpy() == yes).all()
        for label in (0, 1):
            target = torch.full((len(x),), label)
            assert (deployed.agree(alone.predictors, x, target)[0].numpy() == (yes == label)).all()

    def test_a_hair_above_one_half_decides(self):
        def nearly(rows):
            return np.where(rows["months"] > 50, 0.5 + 1e-12, 0.5 - 1e-12)

        hypotheses = from_models([BlackBox(nearly, NUMBERS)] * 4, NUMBERS)
        delivered = RobustNeighbour(hypotheses).fit(NUMBERS).generate(NUMBERS.head(60), target=1)
        assert ((delivered.status == "already_target") == (NUMBERS["months"].head(60) > 50)).all()
        assert (delivered.certificate.agreeing == (delivered.frame["months"] > 50)).all()


class TestRamps:
    VALUES = torch.cat([torch.randn(200, 2, generator=torch.Generator().manual_seed(0)), torch.ones(200, 1)], dim=1)

    def test_closed_form(self):
        ramps = PiecewiseLinearEncoding(torch.tensor([[0.0, 5.0], [1.0, 5.0], [3.0, 5.0]]), [0], n_steps=2)
        assert ramps.n_outputs == 4
        x = torch.tensor([[-1.0, 7.0], [0.5, 7.0], [2.5, 7.0], [9.0, 7.0]])
        expected = [[-1, 7, 0, 0], [0.5, 7, 0.5, 0], [2.5, 7, 1, 0.75], [9, 7, 1, 1]]
        torch.testing.assert_close(ramps(x), torch.tensor(expected))

    def test_steps_add_up_to_the_number_within_its_range(self):
        ramps = PiecewiseLinearEncoding(self.VALUES, [0, 1], n_steps=8)
        x = 3 * torch.randn(50, 3, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
        found = ramps(x)
        assert found.dtype == torch.float64
        torch.testing.assert_close(found[:, :3], x)
        for column in (0, 1):
            mine = ramps.at == column
            low, high = self.VALUES[:, column].min(), self.VALUES[:, column].max()
            climbed = (found[:, 3:][:, mine] * ramps.width[mine]).sum(dim=1)
            torch.testing.assert_close(climbed, x[:, column].clamp(low, high) - low, atol=1e-5, rtol=0)

    def test_monotone_and_between_zero_and_one(self):
        ramps = PiecewiseLinearEncoding(self.VALUES, [0, 1, 2])
        line = torch.linspace(-5, 5, 400)[:, None].expand(-1, 3)
        steps = ramps(line)[:, 3:]
        assert (steps.diff(dim=0) >= 0).all()
        assert steps.min() == 0
        assert steps.max() == 1
        assert torch.isfinite(steps).all()

    def test_a_constant_has_no_step(self):
        assert (PiecewiseLinearEncoding(self.VALUES, [0, 1, 2]).at != 2).all()
        assert PiecewiseLinearEncoding(self.VALUES, [2]).n_outputs == 3
        assert torch.equal(PiecewiseLinearEncoding(self.VALUES, [])(self.VALUES), self.VALUES)

    def test_gradients_are_slopes(self):
        ramps = PiecewiseLinearEncoding(self.VALUES, [0, 1])
        x = torch.randn(20, 3, generator=torch.Generator().manual_seed(2), dtype=torch.float64, requires_grad=True)
        ramps(x).sum().backward()
        assert torch.isfinite(x.grad).all()
        ahead, behind = (ramps(x.detach() + e).sum(dim=1) for e in (1e-7, -1e-7))
        torch.testing.assert_close(x.grad.sum(dim=1), (ahead - behind) / 2e-7, rtol=1e-4, atol=1e-4)

    def test_any_leading_axes(self):
        ramps = PiecewiseLinearEncoding(self.VALUES, [0, 1])
        block = torch.randn(4, 5, 3, generator=torch.Generator().manual_seed(3))
        torch.testing.assert_close(ramps(block), ramps(block.flatten(0, 1)).unflatten(0, (4, 5)))

    @pytest.mark.parametrize("rows", [7, 300])
    def test_a_stack_runs_by_batched_products(self, rows):
        ramps = PiecewiseLinearEncoding(self.VALUES, [0, 1])
        network = nn.Sequential(ramps, mlp(ramps.n_outputs, 2, (16, 8)))
        state = draw_state(network, 5, torch.Generator().manual_seed(4))
        stacked = Stacked(network, state)
        assert stacked._plan is not None
        x = torch.randn(rows, 3, generator=torch.Generator().manual_seed(5))
        found = stacked.log_probs(x)
        for s in range(5):
            alone = torch.func.functional_call(network, {name: value[s] for name, value in state.items()}, (x,))
            torch.testing.assert_close(found[s], torch.log_softmax(alone, dim=-1), atol=1e-5, rtol=1e-4)


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

    def test_leaner_answers_cost_no_more_and_still_convince_them(self):
        found, _, x = self.taught()
        target = 1 - found.students.predictive(x).argmax(dim=1)
        space = TabularSpace.fit(Schema.infer(NUMBERS), NUMBERS)
        answers, margin = x.flip(0), torch.full((len(x),), 0.3)

        def lowest(points):
            log_p = target_log_probs(found.students, points[None], target)
            return lower_log_odds(log_p, found.students.weights, 2.0)[0]

        query = Query(x.numpy(), target.numpy(), space.codes)
        lean = found.shorten(query, answers.numpy(), margin.numpy()[None], 2.0, SearchConfig())
        same, lean = torch.from_numpy(lean)
        assert torch.equal(same, answers)
        assert (space.distance(lean, x) <= space.distance(answers, x) + 1e-6).all()
        convinced = lowest(answers) >= margin
        assert 20 < convinced.sum() < 280
        assert (lowest(lean) >= margin)[convinced].all()
        assert space.distance(lean, x)[convinced].mean() < space.distance(answers, x)[convinced].mean()

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
            AVCG(PointMass(BlackBox(TREE, NUMBERS)), recipe=replace(SHORT, steps=5, layers=(8,))), NUMBERS.head(4)
        )
        assert explainer.distillation_.report()["agreement"].notna().all()

    def test_pictures_have_none(self):
        images = np.random.default_rng(0).random((40, 1, 4, 4)).astype(np.float32)
        blind = FiniteSet(Opaque([lambda x: torch.full((len(x), 2), 0.5)]), ImageSpace.fit(images), np.array([0, 1]))
        with pytest.raises(SettingError, match="Only models of tables have students"):
            AVCG(blind, recipe=Recipe(steps=5)).fit(images)

    def test_half_of_the_steps_come_first(self):
        parts = Recipe(steps=600).in_rounds()
        assert [part.steps for part in parts] == [300, 100, 100, 100]
        assert [part.warm_up for part in parts] == [Recipe().warm_up, 0, 0, 0]
        assert [part.steps for part in Recipe(steps=1).in_rounds()] == [1, 1, 1, 1]


def explained(kind):
    model = boosted(kind).fit(X, Y)
    hypotheses = retrains(model, X, Y, n=6, resampling="bootstrap", schema=SCHEMA)
    return model, fitted(AVCG(hypotheses, recipe=SHORT), X)


@pytest.fixture(scope="module")
def trees():
    return explained("tree")


@pytest.fixture(scope="module", params=["tree", "xgboost"])
def recourse(request):
    return request.getfixturevalue("trees") if request.param == "tree" else explained(request.param)


def recount(model, explainer, delivered):
    """Statuses and certificates once more, by the models' own predict on the rows handed out."""
    target = np.repeat(delivered.target, delivered.n)
    valid = model.predict(delivered.frame) == target
    agreeing = sum(one.model.predict(delivered.frame) == target for one in explainer.split_.test.members)
    np.testing.assert_array_equal(delivered.certificate.agreeing, agreeing)
    assert delivered.certificate.n == len(explainer.split_.test) == 2
    already = np.repeat(model.predict(delivered.factuals) == delivered.target, delivered.n)
    expected = np.select([already, ~valid, agreeing < 2], ["already_target", "not_valid", "not_robust"], "ok")
    assert (delivered.statuses == expected).all()
    places = pd.Index(model.classes_).get_indexer(pd.Index(target))
    of_target = model.predict_proba(delivered.frame)[np.arange(len(target)), places]
    np.testing.assert_allclose(delivered.probability, of_target, atol=1e-7)


class TestTreesFromEndToEnd:
    def test_statuses_certificates_and_constraints(self, recourse):
        model, explainer = recourse
        rows = X.head(60)
        delivered = explainer.generate(rows, target=1)
        assert (delivered.status == "ok").sum() + (delivered.status == "already_target").sum() > 50
        recount(model, explainer, delivered)
        assert complaints(SCHEMA, X, rows, delivered.frame) == []
        assert delivered.frame.dtypes.equals(rows.dtypes)

    def test_the_contract(self, recourse):
        model, explainer = recourse
        check_explainer(explainer, X[model.predict(X) == 0].head(12))

    def test_several_answers(self, trees):
        model, explainer = trees
        rows = X[model.predict(X) == 0].head(20)
        delivered = explainer.generate(rows, n=3)
        recount(model, explainer, delivered)
        assert complaints(SCHEMA, X, rows.loc[rows.index.repeat(3)], delivered.frame) == []
        different = delivered.frame.astype(str).groupby(level=0).apply(lambda three: len(three.drop_duplicates()))
        assert (different == 3).mean() > 0.8

    def test_requests(self, trees):
        model, explainer = trees
        rows = X[model.predict(X) == 0].head(20)
        delivered = explainer.generate(rows, vary=["income", "rating"], ranges={"income": (None, 70)})
        recount(model, explainer, delivered)
        assert set(delivered.changes()["column"]) <= {"income", "rating"}
        assert (delivered.frame["income"] <= np.maximum(70, rows["income"])).all()
        single = explainer.generate(rows, max_changes=1)
        recount(model, explainer, single)
        assert complaints(SCHEMA.at_most(1), X, rows, single.frame) == []

    def test_refined_is_not_dearer(self, trees):
        model, explainer = trees
        rows = X[model.predict(X) == 0].head(20)
        plain = explainer.generate(rows)
        for refine in (True, Refinement(steps=3)):
            delivered = explainer.generate(rows, refine=refine)
            recount(model, explainer, delivered)
            assert (delivered.distance <= plain.distance + 1e-5).all()
            assert complaints(SCHEMA, X, rows, delivered.frame) == []
        assert delivered.distance.mean() < plain.distance.mean()

    def test_the_gap_is_measured_by_the_students(self, trees):
        _, explainer = trees
        gaps = explainer.amortization_gap(X.head(8), steps=5, n_latents=3)
        assert gaps.index.equals(X.head(8).index)
        assert np.isfinite(gaps).all(axis=None)

    def test_the_same_seed_gives_the_same_bytes(self):
        hypotheses, recipe = (
            retrains(TREE, NUMBERS, Y, n=4, resampling="bootstrap"),
            replace(SHORT, steps=20, layers=(16,)),
        )
        one, two, other = (
            fitted(AVCG(hypotheses, recipe=recipe, random_state=seed), NUMBERS).generate(NUMBERS.head(30))
            for seed in (1, 1, 2)
        )
        assert one.to_json() == two.to_json()
        assert one.to_json() != other.to_json()

    def test_a_threshold(self):
        hypotheses = retrains(TREE, NUMBERS, Y, n=6, resampling="bootstrap")
        explainer = fitted(AVCG(hypotheses, threshold=0.25, recipe=SHORT), NUMBERS)
        delivered = explainer.generate(NUMBERS.head(60), target=1)
        granted = TREE.predict_proba(delivered.frame)[:, 1] >= 0.25
        assert (granted == delivered.status.isin(["ok", "not_robust", "already_target"])).all()
        agreeing = sum(one.model.predict_proba(delivered.frame)[:, 1] >= 0.25 for one in explainer.split_.test.members)
        np.testing.assert_array_equal(delivered.certificate.agreeing, agreeing)

    def test_three_classes(self):
        y = np.where(NUMBERS["income"] > 55, "high", np.where(NUMBERS["months"] > 60, "long", "low"))
        model = DecisionTreeClassifier(max_depth=3, random_state=0).fit(NUMBERS, y)
        explainer = fitted(AVCG(retrains(model, NUMBERS, y, n=6, resampling="bootstrap"), recipe=SHORT), NUMBERS)
        for target in (None, "low"):
            delivered = explainer.generate(NUMBERS.head(40), target)
            recount(model, explainer, delivered)
            assert (delivered.status == "not_valid").mean() < 0.2
        assert set(explainer.generate(NUMBERS.head(40)).target) == {"high", "long", "low"}

    def test_learning_from_networks_again_forgets_the_students(self):
        explainer = fitted(
            AVCG(PointMass(BlackBox(TREE, NUMBERS)), recipe=replace(SHORT, steps=5, layers=(8,))), NUMBERS
        )
        assert explainer.distillation_ is not None
        lines = retrains(LogisticRegression(), NUMBERS, Y, n=4, resampling="bootstrap")
        assert fitted(explainer.set_params(hypotheses=lines), NUMBERS).distillation_ is None

    def test_trees_that_agree_on_most_points_are_still_others(self):
        line = pd.DataFrame({"a": np.linspace(-2, 2, 200)})
        model = DecisionTreeClassifier(random_state=0).fit(line, line["a"] > 0.4)
        roles = HypothesisSplit.of(retrains(model, line, line["a"] > 0.4, n=8, resampling="bootstrap"))
        assert len(roles.test) == 2
        years = [DecisionTreeClassifier(max_depth=3, random_state=0).fit(NUMBERS[i::5], Y[i::5]) for i in range(5)]
        for seed in range(10):
            judged = from_models(years, NUMBERS, deployed=years[3])
            fresh = HypothesisSplit.of(judged, torch.Generator().manual_seed(seed)).test
            assert all(box.model is not years[3] for box in fresh.members)
        assert HypothesisSplit.of(from_models([years[0]] * 4, NUMBERS, deployed=years[0])).test is None

    def test_a_plain_function(self):
        box = BlackBox(lambda rows: 1 / (1 + np.exp(-TOY.points(rows))), TOY.X, schema=TOY.schema)
        explainer = fitted(AVCG(PointMass(box), recipe=SHORT), TOY.X)
        denied = TOY.X[TOY.y == 0].head(30)
        delivered = explainer.generate(denied)
        assert delivered.certificate is None
        assert ((TOY.points(delivered.frame) > 0) == (delivered.status == "ok")).all()
        assert (delivered.status == "ok").mean() > 0.8
        assert complaints(TOY.schema, TOY.X, denied, delivered.frame) == []
        short = replace(SHORT, steps=20, layers=(16,))
        trees = retrains(TREE, NUMBERS, Y, n=4, resampling="bootstrap")
        explainer = fitted(AVCG(trees, model=BlackBox(income_rule, NUMBERS), recipe=short), NUMBERS)
        alone = explainer.generate(NUMBERS.head(20))
        assert ((income_rule(alone.frame) > 0.5) == ((alone.target == 1) == (alone.status != "not_valid"))).all()


GAPPY = TOY.X.assign(
    income=TOY.X["income"].where(np.arange(300) % 7 != 0),
    months=TOY.X["months"].where(np.arange(300) % 5 != 0),
    housing=TOY.X["housing"].where(np.arange(300) % 6 != 0).astype("category"),
)


def filled():
    numbers = make_pipeline(SimpleImputer(add_indicator=True), StandardScaler())
    choices = OneHotEncoder(handle_unknown="ignore")
    prepare = make_column_transformer((numbers, ["income", "months"]), (choices, ["housing", "rating", "owns"]))
    return make_pipeline(prepare, LogisticRegression())


@pytest.mark.parametrize("kind", ["boosting", "xgboost", "filled"])
class TestGaps:
    EXPLAINED = {}  # noqa: RUF012  by kind, once for all tests

    @pytest.fixture
    def delivered(self, kind):
        explained = self.EXPLAINED
        if kind not in explained:
            model = (filled() if kind == "filled" else boosted(kind)).fit(GAPPY, Y)
            hypotheses = retrains(model, GAPPY, Y, n=4, resampling="bootstrap")
            schema = hypotheses.space.schema.freeze("months").only_up("rating")
            explainer = fitted(AVCG(hypotheses, schema, recipe=SHORT), GAPPY)
            rows = GAPPY[model.predict(GAPPY) == 0].head(60)
            explained[kind] = model, explainer, rows, explainer.generate(rows)
        return explained[kind]

    def test_gaps_are_read_and_answered(self, kind, delivered):
        model, explainer, rows, answers = delivered
        read = {feature.name for feature in explainer.space_.schema.features if feature.missing != "error"}
        assert read == {"income", "months", "housing"}
        assert explainer.judges_.differentiable is (kind == "filled")
        assert ((model.predict(answers.frame) == 1) == answers.status.isin(["ok", "not_robust"])).all()
        gapped = rows.isna().any(axis=1)
        assert gapped.sum() > 15
        assert answers.status[gapped].isin(["ok", "not_robust"]).mean() > 0.5

    def test_no_gap_is_made_and_a_frozen_one_stays(self, kind, delivered):
        _, explainer, rows, answers = delivered
        assert not (answers.frame.isna() & rows.notna()).any(axis=None)
        pd.testing.assert_series_equal(answers.frame["months"], rows["months"])
        assert rows["months"].isna().any()
        free = ["income", "housing"]
        assert (answers.frame[free].isna() & rows[free].isna()).any(axis=None), "and others may stay"
        assert complaints(explainer.space_.schema, GAPPY, rows, answers.frame) == []

    def test_the_certificate_is_of_rows_with_gaps(self, kind, delivered):
        _, explainer, _, answers = delivered
        x = explainer.space_.encode(answers.frame)
        fresh = explainer.split_.test.bind_rows(answers.frame).log_probs(x).argmax(dim=-1).numpy()
        if kind != "filled":
            fresh = np.stack([box.model.predict(answers.frame) for box in explainer.split_.test.members])
        np.testing.assert_array_equal(answers.certificate.agreeing, (fresh == 1).sum(axis=0))


def test_a_gap_in_a_column_that_was_trained_without():
    model = boosted("boosting").fit(X, Y)
    box = BlackBox(model, X, schema=SCHEMA.allow_missing("months"))
    rows = X.head(30).assign(months=X["months"].head(30).where(np.arange(30) % 2 == 0))
    np.testing.assert_array_equal(box.predict_proba(rows), model.predict_proba(rows))
    delivered = NearestUnlike(from_models([model, model], X, deployed=model, space=box.space_)).fit(X).generate(rows)
    assert ((model.predict(delivered.frame) == delivered.target) == delivered.status.isin(["ok", "not_robust"])).all()


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
        members, (models, base) = self.fitted_by(monkeypatch, model, NUMBERS)
        assert members.predictors.differentiable is gradients
        assert isinstance(members.predictors, Stacked if gradients else BlackBoxPredictors)
        assert base == [model]
        x = members.space.encode(NUMBERS)
        for found, one in zip(members.predictors.log_probs(x).exp(), models, strict=True):
            np.testing.assert_allclose(found, one.predict_proba(NUMBERS), atol=1e-4)
        np.testing.assert_allclose(members.base.predictive(x), model.predict_proba(NUMBERS), atol=1e-4)

    def test_two_processes_do_the_same(self):
        one, two = (retrains(TREE, NUMBERS, Y, n=4, resampling="bootstrap", n_jobs=jobs).predictors for jobs in (1, 2))
        x = BlackBox(TREE, NUMBERS).space_.encode(NUMBERS)
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
        for refine in (False, Refinement(steps=2)):
            delivered = today.generate(denied, refine=refine)
            assert delivered.certificate is None
            assert ((tree.predict(delivered.frame) == 1) == (delivered.status == "ok")).all()
            assert complaints(TOY.schema, TOY.X, denied, delivered.frame) == []
        assert explainer.generate(denied).certificate is not None, "the first is as it was"
