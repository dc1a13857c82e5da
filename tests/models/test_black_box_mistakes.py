"""What people get wrong with models that can only be asked, and what they are told."""

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest
import torch
from asked_models import NUMBERS, SHORT, TOY, X, Y, box, constant, fitted, income_rule, tree_of_numbers
from sklearn.exceptions import NotFittedError
from sklearn.linear_model import LogisticRegression
from sklearn.model_selection import GridSearchCV
from sklearn.svm import LinearSVC
from sklearn.tree import DecisionTreeClassifier

from avcg import AVCG, BlackBox, PointMass, TabularSpace, from_models
from avcg.baselines.nearest import NearestUnlike
from avcg.errors import DataError, SettingError
from avcg.hypotheses.black_box import BlackBoxPredictors


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
        r"answers returned probabilities that are not finite for 300 rows, e.g. \[nan, nan\]. Pass rows",
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
        lambda: box(LinearSVC(random_state=0).fit(NUMBERS, Y))(),
        SettingError,
        "must have predict_proba or be a function. Got a LinearSVC.*wrap the model, e.g. in"
    ),
    "neither": (box(42), SettingError, "must have predict_proba or be a function. Got a int"),
    "a missing column": (
        lambda: box()().predict_proba(NUMBERS.drop(columns="months")),
        DataError,
        "income_rule reads column 'months', which these rows do not have. Available: 'income'",
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
    "a missing value that it cannot read": (
        lambda: box(LogisticRegression().fit(NUMBERS, Y))().predict_proba(NUMBERS.assign(months=np.nan)),
        DataError,
        "LogisticRegression failed on 300 rows: ValueError: Input X contains NaN",
    ),
    "no rows": (box(rows=NUMBERS.head(0)), DataError, "The frame has no rows"),
    "no frame": (box(rows=[[1, 2]]), DataError, "DataFrame. Got list instead"),
    "a column twice": (box(rows=pd.concat([NUMBERS, NUMBERS], axis=1)), DataError, "'income', 'months' twice"),
    "a schema and a space": (
        box(schema=TOY.schema, space=TabularSpace.fit(TOY.schema, TOY.X)), SettingError, "either 'schema' or 'space'"
    ),
    "a class twice": (box(classes=["a", "a"]), SettingError, r"must be a list of different labels. Got \['a', 'a'\]"),
    "a single class": (
        lambda: box(DecisionTreeClassifier(random_state=0).fit(NUMBERS, np.ones(300)))(),
        SettingError,
        r"at least two classes. It has only 1.0.*name all of them: BlackBox\(model, X, classes=",
    ),
    "classes in a text": (box(classes="ab"), SettingError, "must be a list of different labels. Got 'ab'"),
    "other names for classes": (
        box(tree_of_numbers(), classes=["no", "yes"]),
        SettingError,
        r"has the classes 0, 1, which are not among 'no', 'yes'. To rename.*BlackBox\(model.predict_proba",
    ),
    "given: none": (lambda: from_models([], NUMBERS), SettingError, "must contain at least one model. Got none"),
    "given: a schema and a space": (
        lambda: from_models([tree_of_numbers()], NUMBERS, schema=TOY.schema, space=TabularSpace.fit(TOY.schema, TOY.X)),
        SettingError,
        "Pass either 'schema' or 'space' to from_models, not both",
    ),
    "given: other classes": (
        lambda: from_models([tree_of_numbers(), BlackBox(income_rule, NUMBERS, classes=["no", "yes"])], NUMBERS),
        SettingError,
        r"must have the same classes. Got \[0, 1\], \['no', 'yes'\]",
    ),
    "given: classes unknown": (
        lambda: from_models([income_rule], NUMBERS), SettingError,
        r"function has no classes_. Fit it, or wrap it"
    ),
    "no black box": (lambda: BlackBoxPredictors([]), SettingError, "needs at least one model. Got none"),
    "other rows than seen": (
        lambda: BlackBoxPredictors([box()()]).bind_rows(NUMBERS.head(3)).log_probs(torch.zeros(4, 2)),
        DataError,
        "belong to the 3 bound rows. Got codes of 4 rows",
    ),
    "a row in a dictionary": (
        lambda: NearestUnlike(PointMass(box()())).fit(NUMBERS).generate(NUMBERS.iloc[0].to_dict()),
        DataError,
        "pandas or polars DataFrame. Got dict instead",
    ),
    "a bare estimator": (
        lambda: PointMass(tree_of_numbers()), SettingError, r"Use it as a black box, avcg.BlackBox\(model, X\)",
    ),
    "a list of judges": (
        lambda: NearestUnlike(PointMass(box()())).fit(NUMBERS).judged_by([tree_of_numbers()]),
        SettingError,
        r"must be a set of models. Got a list; make one with avcg.from_models\(models, X, space=",
    ),
    "judges of another space": (
        lambda: (
            NearestUnlike(PointMass(box()())).fit(NUMBERS).judged_by(from_models([tree_of_numbers()], NUMBERS.head(50)))
        ),
        SettingError,
        "differ in column 'income'. Pass the same space",
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
