"""Every model adapter in the room keeps the contract: a new one is tested by being there, with an example below."""

import importlib
import inspect
import pkgutil
from typing import get_type_hints

import numpy as np
import pandas as pd
import pytest
import torch
from sklearn.calibration import CalibratedClassifierCV
from sklearn.compose import make_column_transformer
from sklearn.linear_model import LogisticRegression
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import OneHotEncoder, StandardScaler
from sklearn.tree import DecisionTreeClassifier
from torch import nn

import avcg.models
from avcg import BlackBox, Classifier, from_sklearn, from_torch, toys
from avcg.models.affine import Converted
from avcg.models.networks import mlp
from avcg.testing import check_model

LOANS = toys.loans(n=200)
NUMBERS, LABELS = LOANS.X[["income", "months"]], np.array(["no", "yes"], object)[LOANS.y]


def pipeline(last):
    columns = make_column_transformer(
        (StandardScaler(), ["income", "months"]), (OneHotEncoder(), ["owns", "housing", "rating"])
    )
    return make_pipeline(columns, last).fit(LOANS.X, LABELS)


def classifier_of_rows():
    return Classifier(hidden=(4,), epochs=20, learning_rate=0.02).fit(LOANS.X, LABELS), LOANS.X.head(20), None


def classifier_of_images():
    images = np.random.default_rng(0).integers(0, 256, (40, 6, 6), np.uint8)
    images[::2, :3] = 0
    return Classifier(hidden=(4,), epochs=5, learning_rate=0.02).fit(images, np.arange(40) % 2), images[:6], None


def pipeline_as_network():
    model = pipeline(LogisticRegression())
    return from_sklearn(model, LOANS.X, LOANS.schema), LOANS.X.head(8), model.predict_proba


def calibrated_pipeline_as_network():
    model = CalibratedClassifierCV(make_pipeline(StandardScaler(), LogisticRegression()), cv=2)
    three = np.array(["c", "a", "b"])[np.digitize(NUMBERS["income"], [35, 55])]
    model.fit(NUMBERS, three)
    return from_sklearn(model, NUMBERS), NUMBERS.head(20), model.predict_proba


def network_with_preprocessing():
    network = mlp(2, 2, (4,), rng=torch.Generator().manual_seed(0))
    network[-1].weight.data *= 8.0
    network[-1].bias.data = torch.tensor([3.0, 0.0])
    scaler = StandardScaler().fit(NUMBERS)

    def reference(X):
        with torch.no_grad():
            return torch.softmax(network(torch.from_numpy(scaler.transform(X)).float()), dim=-1).numpy()

    return from_torch(network, scaler, NUMBERS, classes=["no", "yes"]), NUMBERS.head(20), reference


def trees_with_classes_in_another_order():
    model = pipeline(DecisionTreeClassifier(max_depth=4, random_state=0))
    box = BlackBox(model, LOANS.X, classes=["yes", "no"], schema=LOANS.schema)
    return box, LOANS.X.head(8), lambda X: model.predict_proba(X)[:, ::-1]


def function_that_writes_into_its_rows():
    def ask(rows):
        rows["income"] -= 50.0
        return (rows["income"] > 0) * 0.8 + 0.1

    return BlackBox(ask, LOANS.X, classes=["no", "yes"]), LOANS.X.head(8), None


EXAMPLES = {
    Classifier: [classifier_of_rows, classifier_of_images],
    from_sklearn: [pipeline_as_network, calibrated_pipeline_as_network],
    from_torch: [network_with_preprocessing],
    BlackBox: [trees_with_classes_in_another_order, function_that_writes_into_its_rows],
}


def adapters_in_the_room():
    """Public functions of `avcg.models` that return an adapter, and adapter classes that no function returns."""
    modules = [
        importlib.import_module(f"avcg.models.{part.name}") for part in pkgutil.iter_modules(avcg.models.__path__)
    ]
    own = {
        name: thing
        for module in modules
        for name, thing in vars(module).items()
        if not name.startswith("_") and getattr(thing, "__module__", None) == module.__name__
    }
    classes = {name: kind for name, kind in own.items() if inspect.isclass(kind) and hasattr(kind, "predict_proba")}
    functions = {
        name: function
        for name, function in own.items()
        if inspect.isfunction(function) and get_type_hints(function).get("return") in classes.values()
    }
    returned = {get_type_hints(function)["return"] for function in functions.values()}
    return functions | {name: kind for name, kind in classes.items() if kind not in returned}


@pytest.mark.parametrize("adapter", adapters_in_the_room().values(), ids=adapters_in_the_room())
def test_it_keeps_the_contract(adapter):
    assert adapter in EXAMPLES, (
        f"{adapter.__name__} has no example: add functions to EXAMPLES that return an adapted model, a few rows and the"
        " user's own model as a function from rows to probabilities"
    )
    for example in EXAMPLES[adapter]:
        check_model(*example())


def test_every_adapter_is_found():
    assert set(EXAMPLES) == set(adapters_in_the_room().values())


class Broken(BlackBox):
    """A model with one fault, of which half the rows are decided each way."""

    def __init__(self, fault):
        super().__init__(lambda rows: 0.8 * (rows["income"] > 40) + 0.1, LOANS.X, classes=["no", "yes"])
        self.fault = fault

    def predict_proba(self, X):
        if self.fault == "writes":
            X["income"] += 1.0
        probabilities = super().predict_proba(X)
        if self.fault == "order":
            even = (np.arange(len(X)) % 2 == 0)[:, None]
            return np.where(even, probabilities, probabilities[:, ::-1])
        if self.fault == "shape":
            return probabilities[:, :1]
        scale = 0.9 if self.fault == "sum" else 1.0
        shift = 0.01 * len(X) if self.fault == "company" else 0.0
        if self.fault == "random":
            shift = 0.1 * np.random.random()  # noqa: NPY002
        return np.clip(scale * probabilities + shift * np.array([1, -1]), 0, 1)

    def predict(self, X):
        labels = super().predict(X)
        return labels[::-1] if self.fault == "labels" else labels


@pytest.mark.parametrize(
    ("fault", "says"),
    [
        ("writes", "changed the caller's rows"),
        ("sum", "do not sum to one"),
        ("shape", "have shape"),
        ("order", "depend on the order"),
        ("company", "depend on the other rows"),
        ("random", "touched the global stream of numpy"),
        ("labels", "does not give the most probable class"),
    ],
)
def test_an_adapter_that_breaks_the_contract_is_found_out(fault, says):
    rows = LOANS.X.head(8).assign(income=np.linspace(20.0, 60.0, 8))
    state = np.random.get_state()  # noqa: NPY002
    with pytest.raises(AssertionError, match=says):
        check_model(Broken(fault), rows)
    np.random.set_state(state)  # noqa: NPY002


def test_another_models_probabilities_are_found_out():
    model, X, reference = pipeline_as_network()
    with pytest.raises(AssertionError, match=r"differs by 0\.\d+ from that of the user's own model"):
        check_model(model, X, lambda rows: reference(rows)[:, ::-1])


def test_a_network_with_another_space_is_found_out():
    model, X, reference = pipeline_as_network()
    shifted = nn.Sequential(mlp(model.space_.event_shape[0], 2, (), rng=torch.Generator().manual_seed(0)))

    class Shifted(Converted):
        def predict_proba(self, X):
            return reference(X)

    with pytest.raises(AssertionError, match="codes of rows get other probabilities"):
        check_model(Shifted(shifted, model.space_, model.classes_), X)


def test_rows_that_are_all_decided_alike_show_nothing():
    box = BlackBox(lambda rows: np.full(len(rows), 0.7), LOANS.X, classes=["no", "yes"])
    with pytest.raises(AssertionError, match="model predicts different classes"):
        check_model(box, pd.concat([LOANS.X.head(3)] * 2))
