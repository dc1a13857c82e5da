"""Recourse that stays valid after the model is retrained.

Importing this package changes nothing global and loads neither torch nor pandas; names are loaded when first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

__version__ = "0.1.0"

if TYPE_CHECKING:
    from avcg import datasets as datasets
    from avcg import errors as errors
    from avcg import guarantees as guarantees
    from avcg import testing as testing
    from avcg.auditing.audit import audit as audit
    from avcg.auditing.audit import feasibility as feasibility
    from avcg.auditing.audit import survival_curve as survival_curve
    from avcg.auditing.backtest import BacktestConfig as BacktestConfig
    from avcg.auditing.backtest import backtest as backtest
    from avcg.datasets import toys as toys
    from avcg.explainers.avcg import AVCG as AVCG
    from avcg.explainers.base import Explainer as Explainer
    from avcg.explainers.counterfactuals import Counterfactuals as Counterfactuals
    from avcg.hypotheses import multiplicity as multiplicity
    from avcg.hypotheses.base import HypothesisDistribution as HypothesisDistribution
    from avcg.hypotheses.dropout import MCDropout as MCDropout
    from avcg.hypotheses.dropout import dropout_rate_for as dropout_rate_for
    from avcg.hypotheses.finite import DeepEnsemble as DeepEnsemble
    from avcg.hypotheses.finite import FiniteSet as FiniteSet
    from avcg.hypotheses.finite import PointMass as PointMass
    from avcg.hypotheses.from_models import from_models as from_models
    from avcg.hypotheses.gaussian import GaussianPosterior as GaussianPosterior
    from avcg.hypotheses.gaussian import SampledWeights as SampledWeights
    from avcg.hypotheses.laplace import Laplace as Laplace
    from avcg.hypotheses.mixture import Mixture as Mixture
    from avcg.hypotheses.predictors import Predictors as Predictors
    from avcg.hypotheses.rashomon import rashomon_set as rashomon_set
    from avcg.hypotheses.retrains import retrains as retrains
    from avcg.hypotheses.variational import SWAG as SWAG
    from avcg.hypotheses.variational import MeanFieldVI as MeanFieldVI
    from avcg.io.artifact import load as load
    from avcg.method import risk as risk
    from avcg.method.objective import Weights as Weights
    from avcg.method.recipe import Recipe as Recipe
    from avcg.models.black_box import BlackBox as BlackBox
    from avcg.models.classifier import Classifier as Classifier
    from avcg.models.dropout_masks import attach_dropout as attach_dropout
    from avcg.models.sklearn import from_sklearn as from_sklearn
    from avcg.models.sklearn import from_torch as from_torch
    from avcg.models.training import Training as Training
    from avcg.schema.features import Categorical as Categorical
    from avcg.schema.features import Continuous as Continuous
    from avcg.schema.schema import Schema as Schema
    from avcg.space.base import Space as Space
    from avcg.space.images import ImageSpace as ImageSpace
    from avcg.space.inspect import inspect as inspect
    from avcg.space.tabular import TabularSpace as TabularSpace

_MODULES = {
    "AVCG": "avcg.explainers.avcg",
    "BlackBox": "avcg.models.black_box",
    "Categorical": "avcg.schema.features",
    "Classifier": "avcg.models.classifier",
    "Continuous": "avcg.schema.features",
    "Counterfactuals": "avcg.explainers.counterfactuals",
    "DeepEnsemble": "avcg.hypotheses.finite",
    "Explainer": "avcg.explainers.base",
    "FiniteSet": "avcg.hypotheses.finite",
    "GaussianPosterior": "avcg.hypotheses.gaussian",
    "HypothesisDistribution": "avcg.hypotheses.base",
    "ImageSpace": "avcg.space.images",
    "Laplace": "avcg.hypotheses.laplace",
    "MCDropout": "avcg.hypotheses.dropout",
    "MeanFieldVI": "avcg.hypotheses.variational",
    "Mixture": "avcg.hypotheses.mixture",
    "PointMass": "avcg.hypotheses.finite",
    "Predictors": "avcg.hypotheses.predictors",
    "Recipe": "avcg.method.recipe",
    "SWAG": "avcg.hypotheses.variational",
    "SampledWeights": "avcg.hypotheses.gaussian",
    "Schema": "avcg.schema.schema",
    "Space": "avcg.space.base",
    "TabularSpace": "avcg.space.tabular",
    "Training": "avcg.models.training",
    "Weights": "avcg.method.objective",
    "attach_dropout": "avcg.models.dropout_masks",
    "audit": "avcg.auditing.audit",
    "backtest": "avcg.auditing.backtest",
    "BacktestConfig": "avcg.auditing.backtest",
    "guarantees": "avcg.guarantees",
    "inspect": "avcg.space.inspect",
    "datasets": "avcg.datasets",
    "dropout_rate_for": "avcg.hypotheses.dropout",
    "errors": "avcg.errors",
    "feasibility": "avcg.auditing.audit",
    "from_sklearn": "avcg.models.sklearn",
    "from_torch": "avcg.models.sklearn",
    "from_models": "avcg.hypotheses.from_models",
    "load": "avcg.io.artifact",
    "multiplicity": "avcg.hypotheses.multiplicity",
    "rashomon_set": "avcg.hypotheses.rashomon",
    "retrains": "avcg.hypotheses.retrains",
    "risk": "avcg.method.risk",
    "survival_curve": "avcg.auditing.audit",
    "testing": "avcg.testing",
    "toys": "avcg.datasets.toys",
}
__all__ = sorted(_MODULES)


def __getattr__(name: str) -> Any:
    if name not in _MODULES:
        raise AttributeError(f"module 'avcg' has no attribute {name!r}")
    module = import_module(_MODULES[name])
    return getattr(module, name, module)  # either a name in the module or, as for `datasets`, the module itself


def __dir__() -> list[str]:
    return [*__all__, "__version__"]
