"""Conversion of fitted scikit-learn models, and of networks with preprocessing, to networks on codes.

Preprocessing before the last estimator is identified by probing it (`avcg.models.affine`). The last estimator is read
from its coefficients. The converted network is compared with the model on all rows before it is returned.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from functools import reduce
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from scipy.sparse import issparse
from sklearn.calibration import CalibratedClassifierCV
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.ensemble import VotingClassifier
from sklearn.exceptions import NotFittedError
from sklearn.frozen import FrozenEstimator
from sklearn.linear_model import LogisticRegression, Perceptron, RidgeClassifier, RidgeClassifierCV, SGDClassifier
from sklearn.model_selection import GridSearchCV, RandomizedSearchCV
from sklearn.multiclass import OneVsRestClassifier
from sklearn.neural_network import MLPClassifier
from sklearn.pipeline import Pipeline
from sklearn.svm import LinearSVC
from sklearn.utils.validation import check_is_fitted
from torch import Tensor, nn

from avcg.errors import DataError, SettingError, did_you_mean
from avcg.models.adapter import as_rows
from avcg.models.affine import INSTEAD, Affine, Converted, Probe, Transform, dense, probabilities, rejected_rows
from avcg.schema.schema import Schema
from avcg.space.encoding import Floats
from avcg.space.frames import open_frame
from avcg.space.tabular import TabularSpace

# Estimators whose decision_function is linear in their features.
_LINEAR = (
    LogisticRegression, LinearDiscriminantAnalysis, SGDClassifier, LinearSVC, RidgeClassifier, RidgeClassifierCV,
    Perceptron,
)  # fmt: skip
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity, "logistic": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU
}  # fmt: skip
# Largest accepted difference of a probability from the model's own.
_TOLERANCE = 1e-5


def from_sklearn(model: Any, X: Any, schema: Schema | None = None, *, space: TabularSpace | None = None) -> Converted:
    """Convert a fitted scikit-learn classifier exactly to a network on codes.

    The last estimator may be a LogisticRegression(CV), an SGDClassifier with log_loss, a LinearDiscriminantAnalysis, an
    MLPClassifier, one of these or a linear score (LinearSVC, RidgeClassifier, ...) in a CalibratedClassifierCV with
    sigmoids or a temperature, a OneVsRestClassifier of the logistic ones, or a soft VotingClassifier of all of these.
    The preprocessing before it must treat each column separately, affine in numbers and arbitrary in categories and
    missing values: scalers, one-hot and ordinal encoders, imputers, ColumnTransformer, and linear maps such as PCA.

    The network is compared with the model on X only. Behaviour beyond the range of these rows, such as clipping, is not
    checked.

    Args:
        model: Fitted classifier, a Pipeline or a bare estimator.
        X: Rows as the model takes them, preferably those it was fitted on, as a frame or a 2-dimensional array.
        schema: Schema of the columns; None: inferred from X, allowing missing values in the columns that have any.
        space: Fitted space of the codes, instead of a schema, so that several models share one; None: fitted to X.

    Raises:
        SettingError: If the model is not fitted or cannot be converted; the message names the column or the estimator.
        DataError: If the rows do not fit the model or the schema.

    >>> from sklearn.linear_model import LogisticRegression
    >>> from sklearn.pipeline import make_pipeline
    >>> from sklearn.preprocessing import StandardScaler
    >>> from avcg import toys
    >>> toy = toys.linear_logistic(n=100)
    >>> model = make_pipeline(StandardScaler(), LogisticRegression()).fit(toy.X, toy.y)
    >>> converted = from_sklearn(model, toy.X)
    >>> bool(np.allclose(converted.predict_proba(toy.X), model.predict_proba(toy.X), atol=1e-5))
    True
    >>> converted.network_
    Sequential(
      (0): Linear(in_features=4, out_features=2, bias=True)
    )
    """
    objection = _objection(model)
    if objection is not None:
        raise SettingError(f"{objection} {INSTEAD}")
    try:
        check_is_fitted(_unwrapped(model))
    except NotFittedError:
        raise SettingError(f"The {type(model).__name__} is not fitted yet. Call fit first.") from None
    _check_columns(model, X)
    probe = Probe(X, schema, space)
    network = nn.Sequential(*_Conversion(probe).layers(model, ())).eval()
    try:
        reference = model.predict_proba(probe.rows)
    except Exception as error:  # another library's code may raise anything
        raise rejected_rows(error) from error
    _check_same(network, probe, reference)
    return Converted(network, probe.space, np.asarray(model.classes_))


def from_torch(
    network: nn.Module,
    preprocess: Any,
    X: Any,
    *,
    classes: ArrayLike | None = None,
    schema: Schema | None = None,
    space: TabularSpace | None = None,
) -> Converted:
    """Convert a network and the preprocessing of its inputs exactly to one network on codes.

    Args:
        network: Network from (N, F) features to one logit per class, or to one logit of the second of two classes, as
            (N, 1) or (N,). It is copied.
        preprocess: Function from rows such as X to features, as a tensor or an array, or a fitted object with
            ``transform``. As in `from_sklearn`, it must treat each column separately, affine in numbers.
        X: Rows as ``preprocess`` takes them.
        classes: Labels in the order of the logits; None: 0, 1, ...
        schema: Schema of the columns; None: inferred from X, allowing missing values in the columns that have any.
        space: Fitted space of the codes, instead of a schema; None: fitted to X.

    Raises:
        SettingError: If the preprocessing is not linear in codes (the message names the column), or the network does
            not fit it.

    >>> from torch import nn
    >>> from avcg import toys
    >>> from avcg.models.networks import mlp
    >>> toy = toys.linear_logistic(n=100)
    >>> from_torch(mlp(4, 2, (8,)), lambda rows: rows.to_numpy() / 10, toy.X).predict(toy.X[:3]).shape
    (3,)
    """
    if not isinstance(network, nn.Module):
        raise SettingError(f"The 'network' of from_torch must be a torch module. Got {type(network).__name__} instead.")
    transform: Transform | None = preprocess if callable(preprocess) else getattr(preprocess, "transform", None)
    if transform is None:
        raise SettingError(
            "The 'preprocess' of from_torch must be a function from rows to features, or have transform. Got"
            f" {type(preprocess).__name__} instead."
        )
    probe = Probe(X, schema, space)
    inner = copy.deepcopy(network).cpu().float().eval()
    affine = probe.affine(transform)
    features = torch.from_numpy(dense(transform(probe.rows), len(as_rows(X)))).float()
    to_logits = _to_logits(inner, features[:2])
    reference = probabilities(nn.Sequential(inner, *to_logits), features)
    labels = np.arange(reference.shape[1]) if classes is None else np.asarray(classes)
    if labels.shape != reference.shape[1:]:
        raise SettingError(f"The 'classes' must name each of {reference.shape[1]} classes. Got {labels.tolist()}.")
    composed = nn.Sequential(*_folded(affine, inner), *to_logits).eval()
    _check_same(composed, probe, reference)
    return Converted(composed, probe.space, labels)


def convertible(model: Any) -> bool:
    """Whether `from_sklearn` supports the last estimator of a model. Its preprocessing is not checked.

    >>> from sklearn.ensemble import RandomForestClassifier
    >>> convertible(LogisticRegression()), convertible(RandomForestClassifier())
    (True, False)
    """
    return _objection(model) is None


class _Conversion:
    """The conversion of one model. Preprocessing that several parts share is identified once."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._affine: dict[tuple[int, ...], Affine] = {}

    def layers(self, model: Any, before: tuple[Any, ...]) -> list[nn.Module]:
        """Layers from codes to logits.

        Args:
            model: Fitted estimator.
            before: Transformers applied to the rows before it.
        """
        model = _unwrapped(model)
        if isinstance(model, Pipeline):
            return self.layers(model.steps[-1][1], (*before, *_transformers(model)))
        if isinstance(model, CalibratedClassifierCV):
            return _mean([self._calibrated(part, before) for part in model.calibrated_classifiers_])
        if isinstance(model, VotingClassifier):
            return _mean([self.layers(part, before) for part in model.estimators_], _shares(model))
        if isinstance(model, MLPClassifier):
            return _perceptron(model, self._features(before))
        scores = self._features(before).then(_linear(model))
        if len(model.classes_) > 2:
            return [scores.layer(), nn.LogSigmoid()] if _one_versus_rest(model) else [scores.layer()]
        # Before 1.8, scikit-learn's multinomial model of two classes has the logits -z and z for a score z.
        symmetric = isinstance(model, LogisticRegression) and not _one_versus_rest(model)
        return [scores.then(_two_logits(2.0 if symmetric else 1.0)).layer()]

    def _features(self, before: tuple[Any, ...]) -> Affine:
        """The affine map from codes to the features that transformers make."""
        key = tuple(map(id, before))
        if key not in self._affine:
            self._affine[key] = self._probe.affine(
                lambda rows: reduce(lambda features, step: step.transform(features), before, rows)
            )
        return self._affine[key]

    def _scores(self, model: Any, before: tuple[Any, ...]) -> Affine | None:
        """The affine map from codes to the decision_function; None if the model has no linear one."""
        model = _unwrapped(model)
        if isinstance(model, Pipeline):
            return self._scores(model.steps[-1][1], (*before, *_transformers(model)))
        return self._features(before).then(_linear(model)) if _has_scores(model) else None

    def _calibrated(self, part: Any, before: tuple[Any, ...]) -> list[nn.Module]:
        """Layers of one calibrated classifier, which calibrates scores if there are any, else probabilities."""
        # With a temperature, the estimator may have been fitted on class positions instead of labels.
        complete = len(part.estimator.classes_) == len(part.classes)
        if not complete or (part.method != "temperature" and (part.estimator.classes_ != part.classes).any()):
            raise SettingError(f"A fold of the CalibratedClassifierCV was fitted on rows that lack a class. {INSTEAD}")
        scores, binary = self._scores(part.estimator, before), len(part.classes) == 2
        if part.method == "temperature":
            if scores is None:
                kind = type(part.estimator).__name__
                raise SettingError(f"A temperature on the probabilities of a {kind} is not supported. {INSTEAD}")
            beta = float(part.calibrators[0].beta_)
            scaling = _two_logits(2 * beta) if binary else Affine(beta * np.eye(len(part.classes)), np.zeros(1))
            return [scores.then(scaling).layer()]
        slopes, offsets = (np.array([getattr(each, name) for each in part.calibrators], float) for name in ("a_", "b_"))
        sigmoids = Affine(-np.diag(slopes), -offsets)
        if binary:
            sigmoids = sigmoids.then(_two_logits())
        if scores is not None:
            layers: list[nn.Module] = [scores.then(sigmoids).layer()]
        else:
            second = Affine(np.array([[0.0, 1.0]]), np.zeros(1))  # the probability that is calibrated for two classes
            calibration = second.then(sigmoids) if binary else sigmoids
            layers = [*self.layers(part.estimator, before), nn.Softmax(dim=-1), calibration.layer()]
        # The softmax of log-sigmoids is the sigmoids divided by their sum.
        return layers if binary else [*layers, nn.LogSigmoid()]


class Beside(nn.Module):
    """Several networks on the same inputs, with concatenated outputs."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """(..., K C) outputs for (..., D) inputs."""
        return torch.cat([member(x) for member in self.members], dim=-1)


class MeanProbability(nn.Module):
    """A layer from the logits of K models to the logarithm of their mean probabilities."""

    log_shares: Tensor

    def __init__(self, shares: Floats) -> None:
        super().__init__()
        self.register_buffer("log_shares", torch.from_numpy(np.log(shares / shares.sum())).float())

    def forward(self, x: Tensor) -> Tensor:
        """(..., C) log-probabilities for (..., K C) logits."""
        log_probs = x.unflatten(-1, (len(self.log_shares), -1)).log_softmax(dim=-1)
        return torch.logsumexp(log_probs + self.log_shares[:, None].to(x.dtype), dim=-2)


def _mean(members: list[list[nn.Module]], shares: Floats | None = None) -> list[nn.Module]:
    """Layers from codes to the logarithm of the models' weighted mean probabilities."""
    shares = np.ones(len(members)) if shares is None else shares
    members = [member for member, share in zip(members, shares, strict=True) if share > 0]
    if len(members) == 1:
        return members[0]
    mean = MeanProbability(shares[shares > 0])
    linear = [member[0] for member in members if isinstance(member[0], nn.Linear)]
    remaining = {tuple(type(layer) for layer in member[1:]) for member in members}
    if len(linear) == len(members) and remaining in ({()}, {(nn.LogSigmoid,)}):
        # Several linear models are one linear layer.
        weight, bias = (torch.cat([getattr(layer, name).data for layer in linear]) for name in ("weight", "bias"))
        return [Affine(weight.double().numpy(), bias.double().numpy()).layer(), *members[0][1:], mean]
    return [Beside([nn.Sequential(*member) for member in members]), mean]


def _linear(model: Any) -> Affine:
    """The affine map from features to scores: one for two classes, else one per class."""
    if isinstance(model, OneVsRestClassifier):
        if model.multilabel_ or not all(_has_scores(part) for part in model.estimators_):
            raise SettingError(
                "A OneVsRestClassifier that gives several labels at once, or has a class without rows, is not"
                f" supported. {INSTEAD}"
            )
        parts = [_linear(_unwrapped(part)) for part in model.estimators_]
        return Affine(np.vstack([part.weight for part in parts]), np.concatenate([part.bias for part in parts]))
    weight = model.coef_.toarray() if issparse(model.coef_) else np.atleast_2d(model.coef_)
    return Affine(weight.astype(np.float64), np.broadcast_to(model.intercept_, len(weight)).astype(np.float64))


def _two_logits(factor: float = 1.0) -> Affine:
    """The affine map from one score to the logits of two classes."""
    return Affine(np.array([[0.0], [factor]]), np.zeros(2))


def _one_versus_rest(model: Any) -> bool:
    """Whether the model has one sigmoid per class."""
    if isinstance(model, LogisticRegression):
        kind = getattr(model, "multi_class", "auto")  # removed in scikit-learn 1.8
        auto = len(model.classes_) == 2 or model.solver == "liblinear"
        return kind == "ovr" or (kind != "multinomial" and auto)
    return isinstance(model, (SGDClassifier, OneVsRestClassifier))


def _perceptron(model: MLPClassifier, features: Affine) -> list[nn.Module]:
    """Layers from codes to the logits of an MLPClassifier."""
    if model.n_outputs_ > 1 and model.out_activation_ != "softmax":
        raise SettingError(f"An MLPClassifier that gives several labels at once is not supported. {INSTEAD}")
    steps = [Affine(w.T.astype(float), b.astype(float)) for w, b in zip(model.coefs_, model.intercepts_, strict=True)]
    if model.n_outputs_ == 1:
        steps[-1] = steps[-1].then(_two_logits())
    steps[0] = features.then(steps[0])
    layers: list[nn.Module] = []
    for step in steps[:-1]:
        layers += [step.layer(), _ACTIVATIONS[model.activation]()]
    return [*layers, steps[-1].layer()]


def _shares(model: VotingClassifier) -> Floats | None:
    """Weights of the voters that are not dropped; None: equal weights."""
    if model.weights is None:
        return None
    kept = [weight for (_, part), weight in zip(model.estimators, model.weights, strict=True) if part != "drop"]
    return np.array(kept, np.float64)


def _unwrapped(model: Any) -> Any:
    """The estimator inside a search or a FrozenEstimator."""
    while isinstance(model, (FrozenEstimator, GridSearchCV, RandomizedSearchCV)):
        model = getattr(model, "best_estimator_", model.estimator)
    return model


def _transformers(model: Pipeline) -> list[Any]:
    return [step for _, step in model.steps[:-1] if step is not None and step != "passthrough"]


def _has_scores(model: Any) -> bool:
    """Whether a model has a linear decision_function."""
    model = _unwrapped(model)
    if isinstance(model, Pipeline):
        return _has_scores(model.steps[-1][1])
    return isinstance(model, _LINEAR) or (
        isinstance(model, OneVsRestClassifier) and isinstance(_unwrapped(model.estimator), _LINEAR)
    )


def _objection(model: Any) -> str | None:
    """Why a model's last estimator cannot be converted, or None if it can."""
    model = _unwrapped(model)
    kind = type(model).__name__
    if isinstance(model, Pipeline):
        return _objection(model.steps[-1][1])
    if isinstance(model, CalibratedClassifierCV):
        if model.method == "isotonic":
            return "A CalibratedClassifierCV with method='isotonic' is a step function, which no network equals."
        inner = LinearSVC() if model.estimator is None else model.estimator
        return None if _has_scores(inner) else _objection(inner)
    if isinstance(model, VotingClassifier):
        if model.voting != "soft":
            return "A VotingClassifier with voting='hard' has no probabilities."
        return next((reason for _, part in model.estimators if part != "drop" and (reason := _objection(part))), None)
    if isinstance(model, OneVsRestClassifier):
        inner = _unwrapped(model.estimator)
        logistic = isinstance(inner, (LogisticRegression, SGDClassifier))
        return _objection(inner) if logistic else f"A OneVsRestClassifier of {type(inner).__name__} is not supported."
    if isinstance(model, SGDClassifier) and model.loss != "log_loss":
        return f"An SGDClassifier with loss={model.loss!r} has no logistic probabilities."
    if isinstance(model, (LogisticRegression, LinearDiscriminantAnalysis, SGDClassifier, MLPClassifier)):
        return None
    return f"A {kind} cannot be converted to a network exactly."


def _check_columns(model: Any, X: Any) -> None:
    """Check that X has the columns that a model was fitted on."""
    names = getattr(model, "feature_names_in_", None)
    if names is None or isinstance(X, np.ndarray):
        return
    columns = open_frame(X).columns
    missing = [name for name in names if name not in columns]
    if missing:
        raise DataError(
            f"The model was fitted on column {missing[0]!r}, which X does not have. {did_you_mean(missing[0], columns)}"
        )


def _check_same(network: nn.Module, probe: Probe, reference: NDArray[Any]) -> None:
    """Check that a network has the model's probabilities on all rows of X."""
    error = np.abs(probabilities(network, probe.codes) - reference).max(axis=1)
    if not (error <= _TOLERANCE).all():
        row = int(np.where(np.isnan(error), np.inf, error).argmax())
        raise SettingError(
            f"The converted model's probabilities are off by {error[row]:.2g} at row {row} of X, more than"
            f" {_TOLERANCE:.0e}: float32 is too coarse for this model, or it changes its predict_proba. {INSTEAD}"
        )


def _folded(affine: Affine, network: nn.Module) -> list[nn.Module]:
    """Layers of an affine map and a network after it, with the network's first linear layer merged into the map."""
    first = network[0] if type(network) is nn.Sequential and len(network) else None
    # Exact types, because a subclass may change its forward.
    if not isinstance(network, nn.Sequential) or type(first) is not nn.Linear or first._forward_hooks:
        return [affine.layer(), network]
    weight = first.weight.detach().double().numpy()
    bias = np.zeros(len(weight)) if first.bias is None else first.bias.detach().double().numpy()
    return [affine.then(Affine(weight, bias)).layer(), *list(network)[1:]]


def _to_logits(network: nn.Module, features: Tensor) -> list[nn.Module]:
    """Layers that give a network one logit per class: none, unless it has a single logit."""
    try:
        with torch.no_grad():
            shape = tuple(network(features).shape)
    except (RuntimeError, TypeError) as error:
        raise SettingError(
            f"The network failed on the {features.shape[1]} features that 'preprocess' returns: {error}"
        ) from error
    if len(shape) == 2 and shape[1] > 1:
        return []
    if shape not in ((len(features),), (len(features), 1)):
        raise SettingError(f"The network must return one logit per class, (N, C). Got {shape} for {len(features)}.")
    two_logits = _two_logits().layer()
    return [two_logits] if len(shape) == 2 else [nn.Unflatten(-1, (-1, 1)), two_logits]
