"""Models that cannot be asked, and documents that cannot be read."""

import json
import re

import numpy as np
import pytest
from advice import SPRING, STORED, autumn_model
from sklearn.linear_model import LogisticRegression

from avcg import BlackBox, audit, survival_curve
from avcg.baselines.robust_search import RobustSearch
from avcg.errors import DataError, SettingError


class Liar:
    """A model that says what it is told to."""

    def __init__(self, says, classes=(0, 1)):
        self.says, self.classes_, self.asked = says, np.array(classes), 0

    def predict_proba(self, X):
        self.asked += 1
        return self.says(X, self.asked)


def falls_over(X, asked):
    if asked > 1:
        raise RuntimeError("out of luck")
    return np.full((len(X), 2), 0.5)


MODELS = {
    "none": (list, SettingError, "There must be at least one model to audit by. Got none."),
    "none by name": (dict, SettingError, "at least one model"),
    "other classes": (
        lambda: Liar(lambda X, _: np.full((len(X), 2), 0.5), ("no", "yes")),
        DataError,
        "The answers aim at 1, which is not a class of this model. Its classes are 'no', 'yes'.",
    ),
    "NaN": (
        lambda: Liar(lambda X, _: np.full((len(X), 2), np.nan)),
        DataError,
        "returned probabilities that are not finite for",
    ),
    "no sum": (lambda: Liar(lambda X, _: np.full((len(X), 2), 0.4)), DataError, "sum to one"),
    "fails midway": (lambda: Liar(falls_over), DataError, "The Liar failed on 50 rows: RuntimeError: out of luck"),
    "one of several": (
        lambda: {"may": autumn_model(), "june": Liar(falls_over)},
        DataError,
        "Model 'june': The Liar failed on 50 rows",
    ),
    "a column renamed": (
        lambda: LogisticRegression().fit(SPRING.X[["income"]].rename(columns={"income": "incomes"}), SPRING.y),
        DataError,
        "reads column 'incomes', which the answers do not have. Did you mean 'income'",
    ),
    "a box of other columns": (
        lambda: BlackBox(lambda r: np.ones(len(r)), SPRING.X.rename(columns={"owns": "owner"})),
        DataError,
        "reads column 'owner', which these rows do not have",
    ),
    "not fitted": (LogisticRegression, SettingError, "not fitted yet"),
    "no model at all": (lambda: 7, SettingError, "must have predict_proba or be a function. Got a int"),
    "no such file": (lambda: "nowhere.onnx", DataError, "There is no file nowhere.onnx"),
}


class TestWrongInput:
    @pytest.mark.parametrize("case", MODELS)
    @pytest.mark.parametrize("ask", [audit, survival_curve])
    def test_models(self, delivered, case, ask):
        model, kind, says = MODELS[case]
        with pytest.raises(kind, match=re.escape(says)):
            ask(delivered, model())

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"threshold": 1.5}, "'threshold' of a decision must be in (0, 1)"),
            ({"confidence": 1.0}, "'confidence' must be in (0, 1)"),
            ({"recourse": autumn_model()}, "'recourse' of audit must be a method such as AVCG. Got a Pipeline"),
        ],
    )
    def test_settings(self, delivered, settings, says):
        with pytest.raises(SettingError, match=re.escape(says)):
            audit(delivered, autumn_model(), **settings)

    def test_a_method_that_searches_by_gradients_needs_them(self, delivered, recourse):
        search = RobustSearch(recourse.hypotheses).fit(SPRING.X)
        with pytest.raises(SettingError, match="RobustSearch as 'recourse' needs models with gradients"):
            audit(delivered, BlackBox(lambda rows: np.zeros(len(rows)), SPRING.X), recourse=search)

    @pytest.mark.parametrize(
        "ask", [lambda a: a.by("houses"), lambda a: a.to_html("houses"), lambda a: a.to_json("houses")]
    )
    def test_no_such_column(self, found, ask):
        with pytest.raises(DataError, match=r"no column 'houses' to group by\. Did you mean 'housing'"):
            ask(found)

    @pytest.mark.parametrize(
        ("damage", "says"),
        [
            (lambda stored: "{", "answers.json: This is not a JSON of counterfactuals"),
            (lambda stored: stored | {"version": 99}, "answers.json: These answers have format version 99"),
            (
                lambda stored: {"format": stored["format"]},
                "answers.json: The format version of these answers must be a whole number. Got None",
            ),
            (
                lambda stored: stored | {"version": "one"},
                "answers.json: The format version of these answers must be a whole number. Got 'one'",
            ),
            (lambda stored: {**stored, "statuses": stored["statuses"][:9]}, "it has 9 of 16 'statuses'"),
            (lambda stored: {**stored, "statuses": ["fine"] * 16}, "'fine' is not a status"),
            (
                lambda stored: {**stored, "answers": {"columns": {}}},
                "answers.json: These answers are incomplete or damaged",
            ),
            (lambda stored: {**stored, "answers": 3}, "answers.json"),
        ],
    )
    def test_damaged_answers(self, damage, says, tmp_path):
        path = tmp_path / "answers.json"
        broken = damage(json.loads(STORED.read_text()))
        path.write_text(broken if isinstance(broken, str) else json.dumps(broken))
        with pytest.raises(DataError, match=re.escape(says)):
            audit(path, autumn_model())

    def test_no_such_answers(self):
        with pytest.raises(DataError, match=r"There is no file 'nowhere\.json'"):
            audit("nowhere.json", autumn_model())
