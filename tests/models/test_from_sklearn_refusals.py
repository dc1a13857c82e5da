"""Scikit-learn models that cannot be networks exactly: refused with the reason."""

import warnings

import numpy as np
import pandas as pd
import pytest
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.ensemble import RandomForestClassifier, VotingClassifier
from sklearn.impute import KNNImputer
from sklearn.linear_model import LogisticRegression, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline, make_pipeline
from sklearn.preprocessing import (
    FunctionTransformer,
    KBinsDiscretizer,
    OneHotEncoder,
    PolynomialFeatures,
    PowerTransformer,
    QuantileTransformer,
    StandardScaler,
)
from sklearn.svm import LinearSVC
from sklearn_models import MODELS, TRAIN, people, usual

from avcg import Schema, TabularSpace
from avcg.errors import DataError, SettingError
from avcg.models.affine import schema_with_gaps
from avcg.models.sklearn import convertible, from_sklearn


class TestRefusals:
    """Every refusal names the column or the estimator, and what to do instead."""

    def refuse(self, model, match, X=None, error=SettingError, schema=None, space=None):
        known, y = people()
        fitted = model if X is not None else model.fit(known[TRAIN], y[TRAIN])
        with pytest.raises(error, match=match):
            from_sklearn(fitted, known[TRAIN] if X is None else X, schema, space=space)

    def around(self, name, transformer):
        rest = [column for column in ("age", "rate", "visits") if column != name]
        return make_pipeline(
            make_column_transformer((transformer, [name]), (StandardScaler(), rest), (OneHotEncoder(), ["job"])),
            LogisticRegression(max_iter=1000),
        )

    @pytest.mark.parametrize(
        "transformer",
        [
            PowerTransformer(),
            QuantileTransformer(n_quantiles=20),
            KBinsDiscretizer(4, strategy="uniform"),
            FunctionTransformer(np.sqrt),
            FunctionTransformer(lambda rows: rows.clip(upper=70)),
            make_pipeline(StandardScaler(), PolynomialFeatures(2)),
            OneHotEncoder(),
        ],
        ids=lambda one: type(one).__name__,
    )
    def test_a_column_that_is_not_affine(self, transformer):
        self.refuse(
            self.around("age", transformer),
            r"column 'age' must be affine. It is not \(off by \S+ at \d+\).* instead: avcg.BlackBox\(model, X\)",
        )

    def test_columns_that_act_together(self):
        both = make_column_transformer(
            (make_pipeline(StandardScaler(), PolynomialFeatures(interaction_only=True)), ["age", "rate"]),
            (StandardScaler(), ["visits"]),
        )
        self.refuse(
            make_pipeline(both, LogisticRegression()), "each column separately. It combines 'age', 'rate' .*BlackBox"
        )
        filled = make_column_transformer((KNNImputer(), ["income", "age"]))
        self.refuse(
            make_pipeline(filled, StandardScaler(), LogisticRegression()),
            "each column separately. It combines 'age', 'income'",
        )

    def test_rows_that_depend_on_their_company(self):
        strange = FunctionTransformer(lambda rows: rows[["age", "rate"]] - rows[["age", "rate"]].mean())
        self.refuse(make_pipeline(strange, LogisticRegression()), "BlackBox")

    def test_two_kinds_of_gaps(self):
        X, y = people()
        X["grade"] = pd.Series([np.nan] * 30 + X["grade"].tolist()[30:], X.index, dtype=object)
        model = make_pipeline(usual(), LogisticRegression()).fit(X, y)
        self.refuse(model, "treat all missing values of a column alike.*such as None and nan, in .*'grade'", X)

    @pytest.mark.parametrize(
        ("last", "match"),
        [
            (RandomForestClassifier(3, random_state=0), "A RandomForestClassifier cannot be converted .*BlackBox"),
            (CalibratedClassifierCV(LinearSVC(), method="isotonic", cv=2), "'isotonic' is a step function.*BlackBox"),
            (CalibratedClassifierCV(RandomForestClassifier(3)), "A RandomForestClassifier cannot"),
            (SGDClassifier(random_state=0), "loss='hinge' has no"),
            (VotingClassifier([("a", LogisticRegression())]), "voting='hard' has no probabilities"),
            (VotingClassifier([("a", RandomForestClassifier(3))], voting="soft"), "A RandomForestClassifier cannot"),
            (OneVsRestClassifier(RandomForestClassifier(3)), "OneVsRestClassifier of RandomForestClassifier"),
            (LinearSVC(), "A LinearSVC cannot"),
            ("passthrough", "A str cannot be converted"),
        ],
    )
    def test_estimators(self, last, match):
        X, _ = people()
        model = Pipeline([("before", usual()), ("last", last)])
        assert not convertible(model)
        self.refuse(model, match, X)

    def test_what_is_convertible(self):
        assert all(convertible(make_pipeline(usual(), model)) for model in MODELS.values())
        assert convertible(CalibratedClassifierCV())
        assert not convertible(lambda rows: rows)

    def test_not_fitted(self):
        X, _ = people()
        self.refuse(make_pipeline(usual(), LogisticRegression()), "The Pipeline is not fitted yet. Call fit", X)
        self.refuse(GridSearchCV(LogisticRegression(), {}), "The GridSearchCV is not fitted yet", X)

    def test_a_category_that_the_model_does_not_take(self):
        """One of X's, one that only the schema has, and one in every row."""
        X, y = people(gaps=False)
        X["city"] = X["city"].astype(object)
        model = make_pipeline(make_column_transformer((OneHotEncoder(), ["job", "city"])), LogisticRegression())
        model.fit(X[TRAIN], y[TRAIN])
        other = X.assign(job=X["job"].where(X["job"] != "clerk", "abbot"))
        self.refuse(model, "rejects 'abbot' in column 'job'.*handle_unknown='ignore'", other)
        wider = Schema.infer(X, kinds={"city": ["Bonn", "Köln", "Ulm"]})
        self.refuse(model, "rejects 'Ulm' in column 'city'", X, schema=wider)
        self.refuse(model, "failed on the rows of X: Found unknown", X.assign(job="abbot"))

    def test_a_gap_that_the_model_does_not_take(self):
        X, y = people(gaps=False)
        numbers = make_pipeline(make_column_transformer((StandardScaler(), ["age", "rate"])), LogisticRegression())
        schema = Schema.infer(X).allow_missing("rate")
        self.refuse(
            numbers.fit(X, y), "turns a missing value in column 'rate' into nan. Add an imputer", X, schema=schema
        )
        texts = make_pipeline(make_column_transformer((OneHotEncoder(), ["job"])), LogisticRegression()).fit(X, y)
        schema = Schema.infer(X).allow_missing("job")
        self.refuse(texts, r"rejects a missing value in column 'job'.*without allow_missing\('job'\)", X, schema=schema)

    def test_columns_with_other_names(self):
        X, y = people()
        model = make_pipeline(usual(), LogisticRegression()).fit(X, y)
        renamed = X.rename(columns={"income": "incomes"})
        self.refuse(
            model, "fitted on column 'income', which X does not have. Did you mean 'incomes'", renamed, DataError
        )
        self.refuse(LogisticRegression().fit(X[["age", "rate"]], y), "failed on the rows of X", X[["rate", "age"]])

    def test_texts_into_a_bare_estimator(self):
        X, y = people()
        model = LogisticRegression().fit(X[["age", "visits"]].to_numpy(), y)
        self.refuse(model, "failed on the rows of X: could not convert string", X[["job", "age"]])

    def test_a_schema_and_a_space(self):
        X, y = people()
        model = make_pipeline(usual(), LogisticRegression()).fit(X, y)
        schema = schema_with_gaps(X)
        self.refuse(model, "either 'schema' or 'space'", X, schema=schema, space=TabularSpace.fit(schema, X))

    def test_several_labels_at_once(self):
        X, y = people()
        both = np.stack([y == "deny", X["member"]], axis=1).astype(int)
        for last in (MLPClassifier((3,), max_iter=5, random_state=0), OneVsRestClassifier(LogisticRegression())):
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                model = make_pipeline(usual(), last).fit(X, both)
            self.refuse(model, "several labels at once", X)

    def test_probabilities_that_are_not_the_models(self):
        """A subclass may do anything; what counts is what it says."""

        class Bolder(LogisticRegression):
            def predict_proba(self, X):
                return np.square(super().predict_proba(X))

        self.refuse(make_pipeline(usual(), Bolder()), r"off by \S+ at row \d+ of X, more than 1e-05.*BlackBox")

    def test_a_fold_without_a_class(self):
        X, y = people(3)
        model = make_pipeline(usual(), CalibratedClassifierCV(LogisticRegression(), cv=2)).fit(X, y)
        model[-1].calibrated_classifiers_[0].estimator.classes_ = np.array(["deny", "grant"])
        self.refuse(model, "was fitted on rows that lack a class.*BlackBox", X)

    def test_a_column_without_any_value(self):
        X, y = people()
        model = make_pipeline(usual(), LogisticRegression()).fit(X, y)
        space = TabularSpace.fit(schema_with_gaps(X), X)
        self.refuse(model, "Column 'income' has no value in any row", X.assign(income=np.nan), DataError, space=space)
