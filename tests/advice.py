"""Loans of a spring, an autumn and the weeks between: who was denied, and the models that decide."""

from functools import cache
from pathlib import Path

from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler

from avcg import toys

STORED = Path(__file__).parent / "data" / "answers-v2.json"
SPRING, AUTUMN = toys.loans(n=400), toys.loans(n=400, seed=5)
SCHEMA = SPRING.schema.at_most(3)


def learnt(loans, least, rows=slice(None)):
    """A pipeline on raw frames that grants from so many points on."""
    prepare = make_column_transformer(
        (OneHotEncoder(handle_unknown="ignore"), ["housing", "rating", "owns"]),
        (StandardScaler(), ["income", "months"]),
    )
    labels = (loans.points(loans.X) >= least).astype(int)
    return make_pipeline(prepare, LogisticRegression()).fit(loans.X.iloc[rows], labels[rows])


@cache
def spring_model():
    return learnt(SPRING, 0.0)


@cache
def autumn_model():
    return learnt(AUTUMN, 0.5)


@cache
def weekly_models():
    return {f"week {i}": learnt(AUTUMN, 0.2 * i, slice(i, None, 4)) for i in range(4)}


@cache
def denied():
    return SPRING.X[spring_model().predict(SPRING.X) == 0].head(50)


def recount(delivered, decides):
    """Verdicts one by one; `decides` says whether a row as a frame of one is granted what it was told."""
    verdicts = []
    for i, status in enumerate(delivered.statuses):
        row = delivered.answers.iloc[[i]]
        good = decides(row, delivered.target[i // delivered.n])
        verdicts.append("no_answer" if status not in ("ok", "not_robust") else "holds" if good else "lost")
    return verdicts
