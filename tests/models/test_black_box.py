"""Models that can only be asked: trees, functions, files; and answers counted on the rows themselves."""

import pickle
import sys
from dataclasses import replace
from functools import cache

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from asked_models import NUMBERS, SCHEMA, SHORT, TOY, X, Y, boosted, constant, fitted, income_rule, tree_of_numbers
from hypothesis import given as over
from hypothesis import settings
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from strategies import cells, complaints, tables

from avcg import AVCG, BlackBox, PointMass, Schema, from_models
from avcg.baselines.nearest import NearestUnlike, RobustNeighbour
from avcg.errors import DataError, MissingExtraError, SettingError
from avcg.hypotheses.black_box import BlackBoxPredictors
from avcg.hypotheses.on_device import OnDevice
from avcg.hypotheses.predictors import Joined, Stacked
from avcg.method.deployed import DeployedModel
from avcg.models.networks import mlp
from avcg.testing import check_hypotheses

NAMES = np.where(Y == 1, "approve", "reject")


@cache
def tree_of_a_table():
    return DecisionTreeClassifier(max_depth=4, random_state=0).fit(NUMBERS.to_numpy(), Y)


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
        model = (tree_of_numbers() if kind == "tree" else boosted(kind)).__sklearn_clone__().fit(table, Y)
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
            BlackBox(tree_of_numbers(), NUMBERS).predict_proba(rows)

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
            BlackBox(tree_of_numbers(), NUMBERS),
            BlackBox(narrow, NUMBERS[["months"]]),
            BlackBox(turned, NUMBERS[::-1][turned.feature_names_in_]),
        ]
        three = from_models(boxes, NUMBERS)
        found = three.predictors.probabilities(three.space.encode(NUMBERS))
        for s, (model, names) in enumerate(
            [(tree_of_numbers(), ["income", "months"]), (narrow, ["months"]), (turned, ["months", "income"])]
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
            NUMBERS.head(5), effort="thorough"
        )
        assert one.n_asked + two.n_asked == sum(seen)
        copies = from_models([one, two], NUMBERS)
        copies.predictors.log_probs(one.space_.encode(NUMBERS.head(5)))
        assert [box.n_asked for box in copies.predictors.members] == [5, 5]

    def test_copies_and_files_say_the_same(self):
        for made in (
            BlackBox(tree_of_numbers(), NUMBERS),
            BlackBox(income_rule, NUMBERS),
            BlackBox(tree_of_a_table(), NUMBERS.to_numpy()),
        ):
            back = pickle.loads(pickle.dumps(made))
            rows = NUMBERS if made.dtypes.index[0] == "income" else NUMBERS.to_numpy()
            np.testing.assert_array_equal(back.predict_proba(rows), made.predict_proba(rows))

    def test_no_rows_are_no_question(self):
        box = BlackBox(tree_of_numbers(), NUMBERS)
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
        with pytest.raises(DataError, match=r"damaged.onnx is not an ONNX model that can be run"):
            BlackBox(damaged, frame)
        with pytest.raises(DataError, match=r"reads 'months', which is not a column of X. There are 'income', 'age'"):
            BlackBox(path, frame.rename(columns={"months": "age"}))
        with pytest.raises(DataError, match=r"mixed-True.onnx failed on 2 rows: .*could not convert"):
            BlackBox(path, frame.assign(income="much"))
        with pytest.raises(DataError, match=r"must return probabilities of shape \(2, 3\). Got \(2, 2\)"):
            BlackBox(path, frame, classes=["a", "b", "c"])
        monkeypatch.setitem(sys.modules, "onnxruntime", None)
        with pytest.raises(MissingExtraError, match=r"pip install 'avcg\[onnx\]'"):
            BlackBox(path, frame)


TOY_SCHEMA = Schema.infer(TOY.X.astype({"rating": str})).only_up("months").freeze("owns")


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
        expected = np.select([already, ~valid, ~robust], ["already_target", "not_found", "not_robust"], "ok")
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
            with pytest.raises(DataError, match=r"belong to the 120 bound rows. Got codes of 3 rows"):
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
