"""Fitted scikit-learn models, and networks with their preprocessing, as networks on codes.

Everything before the last estimator is found by asking (`avcg.models.affine`); the last estimator is read from its
coefficients. Whatever comes out is compared with the model itself on all rows before it is handed out.
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
from avcg.models.affine import INSTEAD, Affine, Converted, Probe, Transform, dense, not_taken, probabilities
from avcg.schema.schema import Schema
from avcg.space.encoding import Floats
from avcg.space.frames import open_frame
from avcg.space.tabular import TabularSpace

# Those whose decision_function is linear in their features.
_LINEAR = (
    LogisticRegression, LinearDiscriminantAnalysis, SGDClassifier, LinearSVC, RidgeClassifier, RidgeClassifierCV,
    Perceptron,
)  # fmt: skip
_ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "identity": nn.Identity, "logistic": nn.Sigmoid, "tanh": nn.Tanh, "relu": nn.ReLU
}  # fmt: skip
# By how much a probability may differ from the model's own.
_CLOSE = 1e-5


def from_sklearn(model: Any, X: Any, schema: Schema | None = None, *, space: TabularSpace | None = None) -> Converted:
    """A fitted scikit-learn classifier as a network on codes, exactly.

    The last estimator may be a LogisticRegression(CV), an SGDClassifier with log_loss, a LinearDiscriminantAnalysis, an
    MLPClassifier, one of these or a linear score (LinearSVC, RidgeClassifier, ...) in a CalibratedClassifierCV with
    sigmoids or a temperature, a OneVsRestClassifier of the logistic ones, or a soft VotingClassifier of all of these.
    Before it may stand anything that treats each column by itself, affine in numbers and as it likes with categories
    and gaps: scalers, one-hot and ordinal encoders, imputers, ColumnTransformer, and linear maps such as PCA.

    The network is checked on X: what the model does beyond the range of its rows (clipping, say) is not looked at.

    Args:
        model: Fitted, a Pipeline or a bare estimator.
        X: Rows as the model takes them, best those it was fitted on: a frame, or a table of numbers.
        schema: What the columns are; None: inferred from X, with gaps read where X has any.
        space: An already fitted space to convert onto, so that several models share one; then there is no schema.

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
    except Exception as error:  # whatever somebody else's code raises
        raise not_taken(error) from error
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
    """A network and the preprocessing of its inputs as one network on codes, exactly.

    Args:
        network: From (N, F) features to logits, one per class, or one logit of the second of two classes, as (N, 1) or
            (N,). It is copied.
        preprocess: From rows such as X to features, as a tensor or an array; or something fitted that has
            ``transform``. As in `from_sklearn` it must treat each column by itself, affine in numbers.
        X: Rows as ``preprocess`` takes them.
        classes: The labels in the order of the logits; None: 0, 1, ...
        schema: What the columns are; None: inferred from X, with gaps read where X has any.
        space: An already fitted space to convert onto; then there is no schema.

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
    own = copy.deepcopy(network).cpu().float().eval()
    affine = probe.affine(transform)
    features = torch.from_numpy(dense(transform(probe.rows), len(as_rows(X)))).float()
    after = _to_logits(own, features[:2])
    reference = probabilities(nn.Sequential(own, *after), features)
    labels = np.arange(reference.shape[1]) if classes is None else np.asarray(classes)
    if labels.shape != reference.shape[1:]:
        raise SettingError(f"There must be one of 'classes' for each of {reference.shape[1]}. Got {labels.tolist()}.")
    composed = nn.Sequential(*_folded(affine, own), *after).eval()
    _check_same(composed, probe, reference)
    return Converted(composed, probe.space, labels)


def convertible(model: Any) -> bool:
    """Whether the last estimator is one that `from_sklearn` reads. What stands before it is not looked at.

    >>> from sklearn.ensemble import RandomForestClassifier
    >>> convertible(LogisticRegression()), convertible(RandomForestClassifier())
    (True, False)
    """
    return _objection(model) is None


class _Conversion:
    """One model on its way: layers from codes, preprocessing that several parts share found only once."""

    def __init__(self, probe: Probe) -> None:
        self._probe = probe
        self._known: dict[tuple[int, ...], Affine] = {}

    def layers(self, model: Any, before: tuple[Any, ...]) -> list[nn.Module]:
        """From codes to logits.

        Args:
            model: Fitted.
            before: The transformers that its rows go through first.
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
        # With two classes, scikit-learn before 1.8 knew a multinomial that reads the score as both of two, -z and z.
        both = isinstance(model, LogisticRegression) and not _one_versus_rest(model)
        return [scores.then(_two_logits(2.0 if both else 1.0)).layer()]

    def _features(self, before: tuple[Any, ...]) -> Affine:
        key = tuple(map(id, before))
        if key not in self._known:
            self._known[key] = self._probe.affine(
                lambda rows: reduce(lambda found, one: one.transform(found), before, rows)
            )
        return self._known[key]

    def _scores(self, model: Any, before: tuple[Any, ...]) -> Affine | None:
        """From codes to what decision_function returns; None for those that have none."""
        model = _unwrapped(model)
        if isinstance(model, Pipeline):
            return self._scores(model.steps[-1][1], (*before, *_transformers(model)))
        return self._features(before).then(_linear(model)) if _has_scores(model) else None

    def _calibrated(self, part: Any, before: tuple[Any, ...]) -> list[nn.Module]:
        """One calibrated classifier: it reads scores where there are any, else probabilities."""
        # With a temperature the estimator may have been fitted on positions instead of labels, in the same order.
        alike = len(part.estimator.classes_) == len(part.classes)
        if not alike or (part.method != "temperature" and (part.estimator.classes_ != part.classes).any()):
            raise SettingError(f"A fold of the CalibratedClassifierCV has not seen every class. {INSTEAD}")
        scores, binary = self._scores(part.estimator, before), len(part.classes) == 2
        if part.method == "temperature":
            if scores is None:
                raise SettingError(
                    f"A temperature on the probabilities of a {type(part.estimator).__name__} is not read. {INSTEAD}"
                )
            beta = float(part.calibrators[0].beta_)
            turn = _two_logits(2 * beta) if binary else Affine(beta * np.eye(len(part.classes)), np.zeros(1))
            return [scores.then(turn).layer()]
        slopes, offsets = (np.array([getattr(one, name) for one in part.calibrators], float) for name in ("a_", "b_"))
        sigmoids = Affine(-np.diag(slopes), -offsets)
        if binary:
            sigmoids = sigmoids.then(_two_logits())
        if scores is not None:
            layers: list[nn.Module] = [scores.then(sigmoids).layer()]
        else:
            second = Affine(np.array([[0.0, 1.0]]), np.zeros(1))  # of two classes, the probability that is read
            read = second.then(sigmoids) if binary else sigmoids
            layers = [*self.layers(part.estimator, before), nn.Softmax(dim=-1), read.layer()]
        # The softmax of log-sigmoids is the sigmoids divided by their sum.
        return layers if binary else [*layers, nn.LogSigmoid()]


class Beside(nn.Module):
    """Several networks on the same inputs, their outputs in one row."""

    def __init__(self, members: Sequence[nn.Module]) -> None:
        super().__init__()
        self.members = nn.ModuleList(members)

    def forward(self, x: Tensor) -> Tensor:
        """(..., D) to (..., K C)."""
        return torch.cat([member(x) for member in self.members], dim=-1)


class MeanProbability(nn.Module):
    """The logits of K models to the log of their mean probabilities."""

    log_shares: Tensor

    def __init__(self, shares: Floats) -> None:
        super().__init__()
        self.register_buffer("log_shares", torch.from_numpy(np.log(shares / shares.sum())).float())

    def forward(self, x: Tensor) -> Tensor:
        """(..., K C) to (..., C)."""
        each = x.unflatten(-1, (len(self.log_shares), -1)).log_softmax(dim=-1)
        return torch.logsumexp(each + self.log_shares[:, None].to(x.dtype), dim=-2)


def _mean(members: list[list[nn.Module]], shares: Floats | None = None) -> list[nn.Module]:
    """Layers to the log of the mean probability of some models."""
    shares = np.ones(len(members)) if shares is None else shares
    members = [member for member, share in zip(members, shares, strict=True) if share > 0]
    if len(members) == 1:
        return members[0]
    mean = MeanProbability(shares[shares > 0])
    linear = [member[0] for member in members if isinstance(member[0], nn.Linear)]
    after = {tuple(type(layer) for layer in member[1:]) for member in members}
    if len(linear) == len(members) and after in ({()}, {(nn.LogSigmoid,)}):
        # Linear models side by side are one linear layer.
        weight, bias = (torch.cat([getattr(one, name).data for one in linear]) for name in ("weight", "bias"))
        return [Affine(weight.double().numpy(), bias.double().numpy()).layer(), *members[0][1:], mean]
    return [Beside([nn.Sequential(*member) for member in members]), mean]


def _linear(model: Any) -> Affine:
    """From features to scores: one for two classes, else one per class."""
    if isinstance(model, OneVsRestClassifier):
        if model.multilabel_ or not all(_has_scores(part) for part in model.estimators_):
            raise SettingError(
                "A OneVsRestClassifier that gives several labels at once, or knows a class that no row has, is not"
                f" read. {INSTEAD}"
            )
        parts = [_linear(_unwrapped(part)) for part in model.estimators_]
        return Affine(np.vstack([part.weight for part in parts]), np.concatenate([part.bias for part in parts]))
    weight = model.coef_.toarray() if issparse(model.coef_) else np.atleast_2d(model.coef_)
    return Affine(weight.astype(np.float64), np.broadcast_to(model.intercept_, len(weight)).astype(np.float64))


def _two_logits(factor: float = 1.0) -> Affine:
    """One score to the logits of two classes."""
    return Affine(np.array([[0.0], [factor]]), np.zeros(2))


def _one_versus_rest(model: Any) -> bool:
    """Whether each class has a sigmoid of its own."""
    if isinstance(model, LogisticRegression):
        kind = getattr(model, "multi_class", "auto")  # scikit-learn 1.8 took it away
        auto = len(model.classes_) == 2 or model.solver == "liblinear"
        return kind == "ovr" or (kind != "multinomial" and auto)
    return isinstance(model, (SGDClassifier, OneVsRestClassifier))


def _perceptron(model: MLPClassifier, features: Affine) -> list[nn.Module]:
    if model.n_outputs_ > 1 and model.out_activation_ != "softmax":
        raise SettingError(f"An MLPClassifier that gives several labels at once is not read. {INSTEAD}")
    steps = [Affine(w.T.astype(float), b.astype(float)) for w, b in zip(model.coefs_, model.intercepts_, strict=True)]
    if model.n_outputs_ == 1:
        steps[-1] = steps[-1].then(_two_logits())
    steps[0] = features.then(steps[0])
    layers: list[nn.Module] = []
    for step in steps[:-1]:
        layers += [step.layer(), _ACTIVATIONS[model.activation]()]
    return [*layers, steps[-1].layer()]


def _shares(model: VotingClassifier) -> Floats | None:
    if model.weights is None:
        return None
    kept = [weight for (_, part), weight in zip(model.estimators, model.weights, strict=True) if part != "drop"]
    return np.array(kept, np.float64)


def _unwrapped(model: Any) -> Any:
    """The estimator that a search or a frozen one stands for."""
    while isinstance(model, (FrozenEstimator, GridSearchCV, RandomizedSearchCV)):
        model = getattr(model, "best_estimator_", model.estimator)
    return model


def _transformers(model: Pipeline) -> list[Any]:
    return [step for _, step in model.steps[:-1] if step is not None and step != "passthrough"]


def _has_scores(model: Any) -> bool:
    """Whether it has a decision_function, a linear one."""
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
            return "A CalibratedClassifierCV with method='isotonic' moves in jumps, so there is no network like it."
        inner = LinearSVC() if model.estimator is None else model.estimator
        return None if _has_scores(inner) else _objection(inner)
    if isinstance(model, VotingClassifier):
        if model.voting != "soft":
            return "A VotingClassifier with voting='hard' has no probabilities."
        return next((why for _, part in model.estimators if part != "drop" and (why := _objection(part))), None)
    if isinstance(model, OneVsRestClassifier):
        inner = _unwrapped(model.estimator)
        logistic = isinstance(inner, (LogisticRegression, SGDClassifier))
        return _objection(inner) if logistic else f"A OneVsRestClassifier of {type(inner).__name__} is not read."
    if isinstance(model, SGDClassifier) and model.loss != "log_loss":
        return f"An SGDClassifier with loss={model.loss!r} has no logistic probabilities."
    if isinstance(model, (LogisticRegression, LinearDiscriminantAnalysis, SGDClassifier, MLPClassifier)):
        return None
    return f"A {kind} cannot be converted to a network exactly."


def _check_columns(model: Any, X: Any) -> None:
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
    """Refuse a network that does not predict what the model predicts."""
    off = np.abs(probabilities(network, probe.codes) - reference).max(axis=1)
    if not (off <= _CLOSE).all():
        row = int(np.where(np.isnan(off), np.inf, off).argmax())
        raise SettingError(
            f"The converted model's probabilities are off by {off[row]:.2g} at row {row} of X, more than {_CLOSE:.0e}:"
            f" float32 is too coarse for this model, or it is more than it seems. {INSTEAD}"
        )


def _folded(affine: Affine, network: nn.Module) -> list[nn.Module]:
    """The layers of a network behind a linear map, its own first linear layer taken into it."""
    first = network[0] if type(network) is nn.Sequential and len(network) else None
    # Exact types: a subclass may do anything in its forward.
    if not isinstance(network, nn.Sequential) or type(first) is not nn.Linear or first._forward_hooks:
        return [affine.layer(), network]
    weight = first.weight.detach().double().numpy()
    bias = np.zeros(len(weight)) if first.bias is None else first.bias.detach().double().numpy()
    return [affine.then(Affine(weight, bias)).layer(), *list(network)[1:]]


def _to_logits(network: nn.Module, features: Tensor) -> list[nn.Module]:
    """What is to follow a network for one logit per class: nothing, unless it has a single one."""
    try:
        with torch.no_grad():
            shape = tuple(network(features).shape)
    except (RuntimeError, TypeError) as error:
        raise SettingError(
            f"The network does not take the {features.shape[1]} features that 'preprocess' makes: {error}"
        ) from error
    if len(shape) == 2 and shape[1] > 1:
        return []
    if shape not in ((len(features),), (len(features), 1)):
        raise SettingError(f"The network must return one logit per class, (N, C). Got {shape} for {len(features)}.")
    both = _two_logits().layer()
    return [both] if len(shape) == 2 else [nn.Unflatten(-1, (-1, 1)), both]
