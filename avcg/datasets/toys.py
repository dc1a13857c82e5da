"""Small problems whose correct answers are known in closed form, for tests, documentation and calibration.

Each has rows and labels like a dataset, and methods that give the correct answers.
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
        X: (N, features) rows.
        y: (N,) decisions of the mean model, 0 or 1.
        schema: Schema without constraints.
        mean: (features + 1,) mean of the weights, followed by that of the intercept.
        covariance: (features + 1, features + 1) covariance of weights and intercept.
    """

    X: pd.DataFrame
    y: NDArray[np.int64]
    schema: Schema
    mean: Floats
    covariance: Floats

    def logit(self, X: pd.DataFrame) -> Floats:
        """(N,) logits of the mean model."""
        return self._with_one(X) @ self.mean

    def survival(self, X: pd.DataFrame, target: int) -> Floats:
        """(N,) exact probability that a model drawn from the distribution decides for the target.

        The logit of a drawn model is Gaussian, so this is the normal distribution function of its mean over its
        standard deviation.

        Args:
            X: (N, features) rows.
            target: Target class, 0 or 1.
        """
        from scipy.special import ndtr

        rows = self._with_one(X)
        deviation = np.sqrt(np.einsum("ni,ij,nj->n", rows, self.covariance, rows))
        return ndtr((1 if target == 1 else -1) * (rows @ self.mean) / deviation)

    def nearest(self, X: pd.DataFrame, logit: float) -> pd.DataFrame:
        """The nearest points in L2 at which the mean model has a given logit, in the direction of the weights.

        Args:
            X: (N, features) rows.
            logit: Logit to reach.
        """
        weights = self.mean[:-1]
        difference = logit - self.logit(X)
        return X + np.outer(difference / (weights @ weights), weights)

    def sample(self, n: int, rng: np.random.Generator) -> Floats:
        """(n, features + 1) weights and intercepts drawn from the distribution."""
        return rng.multivariate_normal(self.mean, self.covariance, size=n)

    @staticmethod
    def _with_one(X: pd.DataFrame) -> Floats:
        return np.column_stack([X.to_numpy(np.float64), np.ones(len(X))])


def linear_logistic(n: int = 500, n_features: int = 4, spread: float = 0.3, seed: int = 0) -> LinearLogistic:
    """A linear problem with a known distribution of models.

    Args:
        n: Number of rows.
        n_features: Number of columns, which are called ``x0``, ``x1``, ...
        spread: Standard deviation of each weight.
        seed: Seed of rows and weights.

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
    """Two interleaving half circles of radius 1 in columns ``x0`` and ``x1``, which no straight line separates.

    Attributes:
        X: (N, 2) rows.
        y: (N,) labels: 0 for the upper moon, around (0, 0), 1 for the lower, around (1, 0.5).
        schema: Schema without constraints.
    """

    X: pd.DataFrame
    y: NDArray[np.int64]
    schema: Schema

    def nearest(self, X: pd.DataFrame, target: int) -> pd.DataFrame:
        """The nearest points in L2 on the target's moon without noise.

        Such a point is on the ray from the circle's centre through the row if that ray meets the half circle, and else
        the nearer of the half circle's two ends.

        Args:
            X: (N, 2) rows.
            target: Target class, 0 or 1.
        """
        center, side = (np.array([0.0, 0.0]), 1.0) if target == 0 else (np.array([1.0, 0.5]), -1.0)
        away = X.to_numpy(np.float64) - center
        length = np.linalg.norm(away, axis=1, keepdims=True)
        on_circle = np.divide(away, length, out=np.tile([0.0, side], (len(away), 1)), where=length > 0)
        end = np.column_stack([np.where(away[:, 0] >= 0, 1.0, -1.0), np.zeros(len(away))])
        nearest = np.where((side * on_circle[:, 1] >= 0)[:, None], on_circle, end)
        return pd.DataFrame(center + nearest, index=X.index, columns=X.columns)


def two_moons(n: int = 400, noise: float = 0.1, seed: int = 0) -> TwoMoons:
    """Two half circles with Gaussian noise.

    Args:
        n: Number of rows.
        noise: Standard deviation of the noise.
        seed: Seed of the rows.

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
    """Synthetic loan requests with every kind of column, decided by a sum of points.

    A request is granted (1) if its points reach 0. Since `points` is a sum over columns, the cheapest set of changes
    can be found by trying all combinations of the categories.

    Attributes:
        X: Rows with the columns income (number), months (of employment, whole number), owns (yes or no), housing
            (category) and rating (ordered category).
        y: (N,) decisions, 0 refused and 1 granted.
        schema: Schema where months may only rise, and housing may not change from own to rent.
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
        """(N,) points above the threshold; a loan is granted from 0 points on."""
        return (
            self.PER_INCOME * X["income"].to_numpy(np.float64)
            + self.PER_MONTH * X["months"].to_numpy(np.float64)
            + self.OWNS * X["owns"].to_numpy(np.float64)
            + X["housing"].map(self.HOUSING).to_numpy(np.float64)
            + X["rating"].astype(object).map(self.RATING).to_numpy(np.float64)
            - self.THRESHOLD
        )

    def least_cost(self, X: pd.DataFrame, price_income: float, price_month: float) -> Floats:
        """(N,) the least cost that grants each loan, at a price of 1 for a changed category.

        Every combination of owns, housing and rating is tried. The missing points are then gained by income alone, or
        by as many whole months as fit, with the rest from income or one more month. Ranges are not limited.

        Args:
            X: Rows.
            price_income: Price of one unit of income.
            price_month: Price of one month.
        """
        best = np.full(len(X), np.inf)
        current = [X["owns"].to_numpy(bool), X["housing"].to_numpy(object), X["rating"].astype(object).to_numpy()]
        for owns, housing, rating in product((False, True), self.HOUSING, self.RATING):
            changed = [current[0] != owns, current[1] != housing, current[2] != rating]
            changes = np.sum(changed, axis=0)
            forbidden = (current[1] == "own") & (housing == "rent")
            missing = np.maximum(0.0, -self.points(X.assign(owns=owns, housing=housing, rating=rating)))
            months = np.floor(missing / self.PER_MONTH)
            rest = (missing - months * self.PER_MONTH) / self.PER_INCOME * price_income
            mixed = months * price_month + np.minimum(rest, price_month)
            cheapest = np.minimum(missing / self.PER_INCOME * price_income, mixed)
            best = np.minimum(best, np.where(forbidden, np.inf, changes + cheapest))
        return best


@dataclass(frozen=True, eq=False)
class Drift:
    """Two numbers whose border between the classes shifts or turns from moment to moment.

    Attributes:
        X: (N, 2) rows, ``a`` and ``b``.
        y: (N,) 0 or 1.
        time: (N,) moment of each row, 0, 1, ...
        schema: Schema without constraints.
        shift: How far the border moves along its direction in each moment.
        turn: By how many radians it turns in each moment.
        noise: Scale of the logistic noise.
    """

    X: pd.DataFrame
    y: NDArray[np.int64]
    time: NDArray[np.int64]
    schema: Schema
    shift: float
    turn: float
    noise: float

    def probability(self, X: pd.DataFrame, time: int) -> Floats:
        """(N,) probability of class 1 at a moment."""
        score = np.cos(self.turn * time) * X["a"] + np.sin(self.turn * time) * X["b"] - self.shift * time
        return np.asarray(1.0 / (1.0 + np.exp(-score / self.noise)))


def drift(
    n: int = 300, moments: int = 8, shift: float = 0.0, turn: float = 0.0, noise: float = 0.5, seed: int = 0
) -> Drift:
    """Rows of several moments, with a border that may shift or turn.

    Args:
        n: Number of rows of each moment.
        moments: Number of moments.
        shift: How far the border moves in each moment.
        turn: By how many radians it turns in each moment.
        noise: Scale of the logistic noise.
        seed: Seed of the rows.

    >>> toy = drift(n=100, moments=3, shift=0.5)
    >>> [round(float(toy.y[toy.time == moment].mean()), 1) for moment in range(3)]
    [0.5, 0.3, 0.2]
    """
    n, moments = check_int(n, "'n' of a toy", 2), check_int(moments, "'moments' of a toy", 1)
    rng = np.random.default_rng(seed)
    X = pd.DataFrame(rng.normal(size=(n * moments, 2)), columns=["a", "b"])
    time = np.repeat(np.arange(moments), n)
    toy = Drift(X, np.zeros(len(X), np.int64), time, Schema.infer(X), shift, turn, noise)
    chances = np.concatenate([toy.probability(X[time == moment], moment) for moment in range(moments)])
    return Drift(X, (rng.random(len(X)) < chances).astype(np.int64), time, toy.schema, shift, turn, noise)


def loans(n: int = 600, seed: int = 0) -> Loans:
    """Synthetic loan requests with every kind of column.

    Args:
        n: Number of rows.
        seed: Seed of the rows.

    >>> toy = loans(n=50)
    >>> [feature.kind for feature in toy.schema.features]
    ['number in steps of 0.01', 'whole number', 'yes or no', 'category', 'ordered category']
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
