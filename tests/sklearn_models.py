"""People with every kind of column, and preprocessing for them."""

import numpy as np
import pandas as pd
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import ColumnTransformer
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import VotingClassifier
from sklearn.impute import SimpleImputer
from sklearn.linear_model import LogisticRegression, LogisticRegressionCV, RidgeClassifier, SGDClassifier
from sklearn.model_selection import GridSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.svm import LinearSVC

NUMBERS = ["age", "income", "hours", "rate", "visits"]
CATEGORIES = ["job", "city", "member", "grade"]
TRAIN, TEST = slice(0, 300), slice(300, 500)


def people(classes=2, gaps=True, n=500):
    """Rows with every kind of column, and labels that depend on them."""
    rng = np.random.default_rng(classes)
    X = pd.DataFrame(
        {
            "age": rng.integers(18, 90, n),
            "job": rng.choice(["clerk", "nurse", "smith", "judge"], n, p=[0.5, 0.3, 0.18, 0.02]),
            "income": rng.lognormal(10, 0.7, n).round(2),
            "city": pd.Categorical(rng.choice(["Bonn", "Köln"], n), ["Bonn", "Köln", "Ulm"]),
            "hours": pd.array(rng.integers(0, 60, n), "Int64"),
            "member": rng.random(n) < 0.3,
            "rate": rng.normal(5, 2, n).astype(np.float32),
            "grade": rng.choice(["a", "b", "c"], n).astype(object),
            "visits": rng.integers(0, 2, n),
        },
        index=rng.permutation(n) + 7,
    )
    score = X["age"] / 20 + X["member"] * 2 - (X["job"] == "nurse") + X["rate"] / 2 + rng.normal(0, 1, n)
    y = pd.qcut(score, classes, labels=["deny", "grant", "wait"][:classes]).astype(str).to_numpy()
    if gaps:
        X.loc[X.index[rng.random(n) < 0.1], "income"] = np.nan
        X.loc[X.index[rng.random(n) < 0.1], "hours"] = pd.NA
        X.loc[X.index[rng.random(n) < 0.1], "city"] = np.nan
        # None, which encoders tell from nan; pandas makes texts of objects unless told not to.
        X["grade"] = pd.Series(np.where(rng.random(n) < 0.1, None, X["grade"]), X.index, dtype=object)
    return X, y


def columns(numbers, categories, remainder="drop"):
    return ColumnTransformer([("n", numbers, NUMBERS), ("c", categories, CATEGORIES)], remainder=remainder)


def usual():
    """What most people write."""
    return columns(make_pipeline(SimpleImputer(), StandardScaler()), OneHotEncoder(handle_unknown="ignore"))


MODELS = {
    "logistic": LogisticRegression(C=0.5),
    "liblinear": LogisticRegression(solver="liblinear", random_state=0),
    "logistic cv": LogisticRegressionCV(Cs=3, cv=2, max_iter=300),
    "sgd": SGDClassifier(loss="log_loss", alpha=0.01, random_state=0),
    "lda": LinearDiscriminantAnalysis(),
    "one versus rest": OneVsRestClassifier(LogisticRegression(solver="liblinear", random_state=0)),
    "relu": MLPClassifier((12, 6), max_iter=20, random_state=0),
    "tanh": MLPClassifier((5,), activation="tanh", max_iter=20, random_state=0),
    "logistic units": MLPClassifier((5,), activation="logistic", max_iter=20, random_state=0),
    "identity": MLPClassifier((5,), activation="identity", max_iter=20, random_state=0),
    "svc": CalibratedClassifierCV(LinearSVC(C=0.1, random_state=0), cv=3),
    "svc alone": CalibratedClassifierCV(LinearSVC(C=0.1, random_state=0), cv=3, ensemble=False),
    "hinge": CalibratedClassifierCV(SGDClassifier(alpha=0.1, random_state=0), cv=2),
    "ridge": CalibratedClassifierCV(RidgeClassifier(), cv=2),
    "calibrated logistic": CalibratedClassifierCV(LogisticRegression(), cv=2),
    "calibrated perceptron": CalibratedClassifierCV(MLPClassifier((4,), max_iter=20, random_state=0), cv=2),
    "vote": VotingClassifier(
        [("a", LogisticRegression()), ("b", MLPClassifier((4,), max_iter=20, random_state=0)), ("c", "drop")],
        voting="soft", weights=[2, 1, 5],
    ),
    "vote of linear ones": VotingClassifier(
        [("a", LogisticRegression()), ("b", LogisticRegression(C=0.01))], voting="soft"
    ),
    "search": GridSearchCV(LogisticRegression(), {"C": [0.1, 1.0]}, cv=2),
}  # fmt: skip
