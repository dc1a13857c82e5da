"""What people get wrong with distributions, and what they are told."""

import copy

import numpy as np
import pytest
import torch
from distributions import ForkedNetwork

import avcg
from avcg.errors import DataError, SettingError
from avcg.hypotheses.predictors import Stacked
from avcg.models.networks import mlp

BAD = {
    "negative epsilon": (
        lambda toy, model: avcg.rashomon_set(avcg.MCDropout(model), toy.X, toy.y, -0.1),
        "'epsilon' parameter of rashomon_set must be >= 0. Got -0.1",
    ),
    "unknown loss": (
        lambda toy, model: avcg.rashomon_set(avcg.MCDropout(model), toy.X, toy.y, 0.1, loss="l2"),
        "'zero_one'. Got 'l2'",
    ),
    "unknown reference": (
        lambda toy, model: avcg.rashomon_set(avcg.MCDropout(model), toy.X, toy.y, 0.1, reference="mean"),
        "'best' or a number. Got 'mean'",
    ),
    "no deterministic reference": (
        lambda toy, model: avcg.rashomon_set(avcg.PointMass(model), toy.X, model_labels(toy), 0.1),
        "no deterministic network.*reference='best'",
    ),
    "losses that are not numbers": (
        lambda toy, model: avcg.rashomon_set(
            avcg.FiniteSet(Stacked(broken(model.network_), {})),
            model.space_.encode(toy.X),
            model_labels(toy),
            0.1,
            reference="best",
        ),
        "1 of 1 candidates have a loss that is not a number",
    ),
    "mismatched architectures": (
        lambda toy, model: Stacked(model.network_, {"0.weight": torch.zeros(3, 7, 7)}),
        r"override '0.weight' has shape \(7, 7\).*Joined",
    ),
    "an override that is none": (
        lambda toy, model: Stacked(model.network_, {"nope": torch.zeros(3, 7)}),
        "'nope'.*no such name",
    ),
    "overrides of two sizes": (
        lambda toy, model: Stacked(model.network_, {"0.bias": torch.zeros(3, 16), "0.weight": torch.zeros(2, 16, 4)}),
        r"same number of hypotheses. Got \[2, 3\]",
    ),
    "no dropout": (
        lambda toy, model: avcg.MCDropout(mlp(4, 2, (8,))),
        "MCDropout needs a network with nn.Dropout.*attach_dropout",
    ),
    "a rate that cannot be": (
        lambda toy, model: avcg.MCDropout(model, rate=1.0),
        r"'rate' of dropout must be in"
        r" \[0, 1\). Got 1.0",
    ),
    "labels outside the classes": (
        lambda toy, model: (
            avcg.PointMass(model).sample(1).losses(model.space_.encode(toy.X), torch.full((len(toy.X),), 2))
        ),
        "one class position per row, 0 to 1.*2 to 2",
    ),
    "labels that are none of the classes": (
        lambda toy, model: avcg.Laplace.fit(model, toy.X, np.where(toy.y == 1, "yes", "no")),
        "must be among the model's classes, 0, 1. Got 'no', 'yes'",
    ),
    "an estimator without predict_proba": (
        lambda toy, model: avcg.retrains(__import__("sklearn.svm").svm.LinearSVC(), toy.X, toy.y, 3),
        "A LinearSVC has no predict_proba.*CalibratedClassifierCV",
    ),
    "an unfitted classifier": (lambda toy, model: avcg.MCDropout(avcg.Classifier()), "not fitted yet"),
    "no model at all": (lambda toy, model: avcg.PointMass("model"), "str is neither a torch network nor"),
    "no members": (lambda toy, model: avcg.DeepEnsemble([]), "at least one member"),
    "a draw of none": (
        lambda toy, model: avcg.MCDropout(model).sample(0),
        "'n' of sample must be a whole number >= 1. Got 0",
    ),
    "frames for a bare network": (
        lambda toy, model: avcg.Laplace.fit(model.network_, toy.X, toy.y),
        "reads encoded tensors",
    ),
    "an unknown way to retrain": (
        lambda toy, model: avcg.retrains(model, toy.X, toy.y, 3, resampling="drift"),
        "'expanding' or shares of these. Got 'drift'",
    ),
    "a share of nothing": (
        lambda toy, model: avcg.retrains(model, toy.X, toy.y, 3, share=0),
        r"'share' of"
        r" retrains.*\(0, 1\)",
    ),
    "batch norm in retrains": (
        lambda toy, model: avcg.retrains(ForkedNetwork(), torch.zeros(9, 5), torch.zeros(9).long(), 2),
        "'norm' keeps running statistics",
    ),
    "laplace of everything in full": (
        lambda toy, model: avcg.Laplace.fit(model, toy.X, toy.y, parameters="all"),
        "parameters='all' needs structure='diag'. Got structure='full'",
    ),
    "a prior without width": (
        lambda toy, model: avcg.MeanFieldVI.fit(model, toy.X, toy.y, prior_std=0),
        "'prior_std'.*> 0",
    ),
    "a mixture of nothing": (lambda toy, model: avcg.Mixture([]), "at least one component"),
    "shares that do not fit": (
        lambda toy, model: avcg.Mixture([avcg.PointMass(model)], [1, 2]),
        "one positive share per component",
    ),
    "one snapshot": (
        lambda toy, model: avcg.SWAG.fit(model, toy.X, toy.y, n_snapshots=1),
        "'n_snapshots' of SWAG.*>= 2",
    ),
    "no epochs": (
        lambda toy, model: avcg.Training(epochs=0),
        "'epochs' of Training must be a whole number >= 1. Got 0",
    ),
}


def model_labels(toy):
    return torch.tensor(toy.y)


def broken(network):
    network = copy.deepcopy(network)
    next(network.parameters()).data.fill_(torch.nan)
    return network


@pytest.mark.parametrize("case", BAD)
def test_bad_input(case, toy_model):
    call, message = BAD[case]
    with pytest.raises((SettingError, DataError), match=message):
        call(*toy_model)
