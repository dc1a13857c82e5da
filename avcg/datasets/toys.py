"""Small problems whose answers are known in closed form, for tests, documentation and calibration.

Each has rows and labels like a dataset, and knows the truth that a method is to find.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product

import numpy as np
import pandas as pd
from numpy.typing import NDArray

from avcg.errors import check_int
from avcg.schema.schema import Schema

Floats = NDArray[np.float64]


@dataclass(frozen=True, eq=False)
class LinearLogistic:
    """A logistic model whose weights are Gaussian: P(y = 1 | x, w) = sigmoid(w·x + b), (w, b) ~ N(mean, covariance).

    Attributes:
        X: (N, features).
        y: (N,) 0 or 1, the decision of the mean model.
        schema: All columns free.
        mean: (features + 1,) weights, then the intercept.
        covariance: Of the same.
    """

    X: pd.DataFrame
    y: NDArray[np.int64]
    schema: Schema
    mean: Floats
    covariance: Floats

    def logit(self, X: pd.DataFrame) -> Floats:
        """(N,) the mean model's logit."""
        return self._with_one(X) @ self.mean

    def survival(self, X: pd.DataFrame, target: int) -> Floats:
        """(N,) the probability that a model drawn from the distribution gives the target, exactly.

        The logit of a drawn model is Gaussian, so this is the normal distribution function of its mean over its
        standard deviation.
        """
        from scipy.special import ndtr

        rows = self._with_one(X)
        deviation = np.sqrt(np.einsum("ni,ij,nj->n", rows, self.covariance, rows))
        return ndtr((1 if target == 1 else -1) * (rows @ self.mean) / deviation)

    def nearest(self, X: pd.DataFrame, logit: float) -> pd.DataFrame:
        """The point nearest in L2 at which the mean model has the given logit: straight along the weights."""
        weights = self.mean[:-1]
        gap = logit - self.logit(X)
        return X + np.outer(gap / (weights @ weights), weights)

    def sample(self, n: int, rng: np.random.Generator) -> Floats:
        """(n, features + 1) weights and intercepts drawn from the distribution."""
        return rng.multivariate_normal(self.mean, self.covariance, size=n)

    @staticmethod
    def _with_one(X: pd.DataFrame) -> Floats:
        return np.column_stack([X.to_numpy(np.float64), np.ones(len(X))])


def linear_logistic(n: int = 500, n_features: int = 4, spread: float = 0.3, seed: int = 0) -> LinearLogistic:
    """A linear problem with a known distribution of models.

    Args:
        n: Rows.
        n_features: Columns, ``x0``, ``x1``, ...
        spread: Standard deviation of each weight.
        seed: Of rows and weights.

    >>> toy = linear_logistic(n=100)
    >>> answers = toy.nearest(toy.X, logit=2.0)
    >>> bool(np.allclose(toy.logit(answers), 2.0))
    True
    """
    n = check_int(n, "'n' of a toy", 2)
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(n, n_features)), columns=[f"x{i}" for i in range(n_features)])
    mean = np.append(rng.normal(size=n_features), 0.0)
    root = rng.normal(size=(n_features + 1, n_features + 1))
    covariance = root @ root.T
    scale = spread / np.sqrt(np.diag(covariance))
    toy = LinearLogistic(X, np.zeros(n, np.int64), Schema.infer(X), mean, covariance * np.outer(scale, scale))
    return LinearLogistic(X, (toy.logit(X) > 0).astype(np.int64), toy.schema, toy.mean, toy.covariance)


@dataclass(frozen=True, eq=False)
class TwoMoons:
    """Two interleaving half circles of radius 1 in columns ``x0`` and ``x1``: no straight line parts them.

    Attributes:
        X: (N, 2).
        y: (N,) 0 for the upper moon, around (0, 0), 1 for the lower, around (1, 0.5).
        schema: Both columns free.
    """

    X: pd.DataFrame
    y: NDArray[np.int64]
    schema: Schema

    def nearest(self, X: pd.DataFrame, target: int) -> pd.DataFrame:
        """The point of the target's moon (without noise) that is nearest in L2.

        Along the ray from the circle's centre where that meets the half circle, else the nearer of its two ends.
        """
        center, side = (np.array([0.0, 0.0]), 1.0) if target == 0 else (np.array([1.0, 0.5]), -1.0)
        away = X.to_numpy(np.float64) - center
        length = np.linalg.norm(away, axis=1, keepdims=True)
        on_circle = np.divide(away, length, out=np.tile([0.0, side], (len(away), 1)), where=length > 0)
        end = np.column_stack([np.where(away[:, 0] >= 0, 1.0, -1.0), np.zeros(len(away))])
        nearest = np.where((side * on_circle[:, 1] >= 0)[:, None], on_circle, end)
        return pd.DataFrame(center + nearest, index=X.index, columns=X.columns)


def two_moons(n: int = 400, noise: float = 0.1, seed: int = 0) -> TwoMoons:
    """Two half circles with Gaussian noise around them.

    >>> toy = two_moons(n=50, noise=0.0)
    >>> bool(np.allclose(toy.nearest(toy.X[toy.y == 1], target=1), toy.X[toy.y == 1]))
    True
    """
    from sklearn.datasets import make_moons

    n = check_int(n, "'n' of a toy", 2)
    points, y = make_moons(n, noise=noise, random_state=seed)
    X = pd.DataFrame(points, columns=["x0", "x1"])
    return TwoMoons(X, y.astype(np.int64), Schema.infer(X))


@dataclass(frozen=True, eq=False)
class Loans:
    """Made-up loan requests with every kind of column, decided by a sum of points.

    A request is granted (1) when its points reach 0. What each column adds is in `points`, so the cheapest set of
    changes can be found by trying all combinations of the discrete ones.

    Attributes:
        X: income (number), months employed (whole), owns (yes or no), housing (category), rating (ordered category).
        y: (N,) 0 refused, 1 granted.
        schema: Months only up, housing never from own to rent.
    """

    X: pd.DataFrame
    y: NDArray[np.int64]
    schema: Schema

    PER_INCOME = 0.05
    PER_MONTH = 0.02
    OWNS = 0.5
    HOUSING = {"own": 0.6, "rent": 0.0, "free": -0.3}  # noqa: RUF012
    RATING = {"poor": -1.0, "fair": 0.0, "good": 0.8}  # noqa: RUF012
    THRESHOLD = 3.5

    def points(self, X: pd.DataFrame) -> Floats:
        """(N,) points above the threshold; 0 and more grants the loan."""
        return (
            self.PER_INCOME * X["income"].to_numpy(np.float64)
            + self.PER_MONTH * X["months"].to_numpy(np.float64)
            + self.OWNS * X["owns"].to_numpy(np.float64)
            + X["housing"].map(self.HOUSING).to_numpy(np.float64)
            + X["rating"].astype(object).map(self.RATING).to_numpy(np.float64)
            - self.THRESHOLD
        )

    def least_cost(self, X: pd.DataFrame, price_income: float, price_month: float) -> Floats:
        """(N,) the least cost that grants each loan, at given prices per unit and 1 per changed category.

        Every combination of owns, housing and rating is tried. What is then still lacking is bought with income alone,
        or with as many whole months as fit and the rest with income or one more month. Ranges are not limited here.
        """
        best = np.full(len(X), np.inf)
        now = [X["owns"].to_numpy(bool), X["housing"].to_numpy(object), X["rating"].astype(object).to_numpy()]
        for owns, housing, rating in product((False, True), self.HOUSING, self.RATING):
            changed = [now[0] != owns, now[1] != housing, now[2] != rating]
            changes = np.sum(changed, axis=0)
            forbidden = (now[1] == "own") & (housing == "rent")
            lacking = np.maximum(0.0, -self.points(X.assign(owns=owns, housing=housing, rating=rating)))
            months = np.floor(lacking / self.PER_MONTH)
            rest = (lacking - months * self.PER_MONTH) / self.PER_INCOME * price_income
            mixed = months * price_month + np.minimum(rest, price_month)
            cheapest = np.minimum(lacking / self.PER_INCOME * price_income, mixed)
            best = np.minimum(best, np.where(forbidden, np.inf, changes + cheapest))
        return best


def loans(n: int = 600, seed: int = 0) -> Loans:
    """Loan requests with every kind of column.

    >>> toy = loans(n=50)
    >>> [feature.kind for feature in toy.schema.features]
    ['number', 'whole number', 'yes or no', 'category', 'ordered category']
    >>> bool(((toy.points(toy.X) >= 0) == (toy.y == 1)).all())
    True
    """
    n = check_int(n, "'n' of a toy", 2)
    rng = np.random.default_rng(seed)
    ratings = list(Loans.RATING)
    X = pd.DataFrame(
        {
            "income": np.round(rng.gamma(9.0, 5.0, n), 2),
            "months": rng.integers(0, 120, n),
            "owns": rng.random(n) < 0.4,
            "housing": rng.choice(list(Loans.HOUSING), n, p=[0.4, 0.45, 0.15]),
            "rating": pd.Categorical(rng.choice(ratings, n, p=[0.3, 0.4, 0.3]), ratings, ordered=True),
        }
    )
    schema = Schema.infer(X).only_up("months").forbid("housing", "own", "rent")
    toy = Loans(X, np.zeros(n, np.int64), schema)
    return Loans(X, (toy.points(X) >= 0).astype(np.int64), schema)
