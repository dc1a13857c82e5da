"""``avcg demo``: changes for three people with their certificates, and a comparison with simpler methods."""

from __future__ import annotations

import time
import warnings
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pandas as pd
import torch

from avcg.baselines.nearest import ClassMean, NearestUnlike
from avcg.datasets import published as datasets
from avcg.errors import MissingExtraError, PromiseWarning
from avcg.explainers.avcg import AVCG
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.explainers.records import Option
from avcg.files import write_whole
from avcg.hypotheses.retrains import retrains
from avcg.io.folder import FORMAT, check_folder
from avcg.io.onnx import missing_dependency
from avcg.method.recipe import Recipe
from avcg.metrics.functional import columns_changed, distance_to_rows, l1_distance
from avcg.models.adapter import class_positions
from avcg.models.classifier import Classifier
from avcg.report.plots import check_picture, plot_changes
from avcg.space.tabular import table_of

if TYPE_CHECKING:
    from rich.console import Console

_PEOPLE, _COMPARED_ROWS, _SAVED_ROWS = 3, 60, 20
_WANTED = "benign"
_ASSUMPTION = "The next model is trained as this one was, on a bootstrap of the rows."


def demonstrate(console: Console, seed: int, picture: str, steps: int, save: str | None = None) -> None:
    """Fit a model, its retrains and a generator on embedded data, and print answers and measurements.

    Args:
        console: Console to print to.
        seed: Seed of the split, the models and the generator.
        picture: Path of a plot of the answers; without matplotlib there is none.
        steps: Number of training steps of the generator.
        save: Folder to save the explainer and some rows to; None: they are not saved.
    """
    check_picture(picture)  # before anything slow
    if save is not None:
        check_folder(save, FORMAT)
    data = datasets.load("breast_cancer")
    train, _, test = data.split(seed)
    about = datasets.about("breast_cancer")["title"]
    console.print(f"\n[bold]{about}[/bold]: {len(data)} rows, {len(data.X.columns)} columns, none of them frozen\n")
    model = Classifier(schema=data.schema, random_state=seed).fit(train.X, train.y)
    hypotheses = retrains(model, train.X, train.y, n=40, resampling="bootstrap", random_state=seed)
    judges = retrains(model, train.X, train.y, n=10, resampling="bootstrap", random_state=seed + 1).predictors
    started = time.perf_counter()
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        recourse = AVCG(hypotheses, recipe=Recipe(steps=steps), random_state=seed).fit(train.X, train.y)
    console.print(f"One generator trained in {time.perf_counter() - started:.0f} s. {_promise(recourse, caught)}\n")
    X = test.X.iloc[:_COMPARED_ROWS]
    malignant = X[model.predict(X) == "malignant"].head(_PEOPLE)
    answers = recourse.generate(malignant)
    console.print(_people(answers))
    others = {
        "avcg": recourse,
        "nearest unlike neighbour": NearestUnlike(hypotheses, random_state=seed).fit(train.X, train.y),
        "class mean": ClassMean(hypotheses, random_state=seed).fit(train.X, train.y),
    }
    console.print(_figures(others, X, train, model, judges))
    try:
        console.print(f"Drawn in {plot_changes(answers, picture, _PEOPLE)}.")
    except MissingExtraError as error:
        console.print(str(error), markup=False)
    if save is not None:
        console.print(_save(recourse, test.X, save), markup=False, soft_wrap=True)  # commands stay on one line


def _save(recourse: AVCG, rows: pd.DataFrame, folder: str) -> str:
    """Save the explainer, with graphs if the extra is installed, and some rows; gives commands to try next."""
    dtypes = {str(name): str(dtype) for name, dtype in rows.dtypes.items()}
    notes = {"made_by": "avcg demo", "positive": _WANTED, "dtypes": dtypes, "assumption": _ASSUMPTION}
    recourse.save(folder, graphs=missing_dependency() is None, about=notes)
    path = Path(folder) / "rows.csv"
    write_whole(path, rows.head(_SAVED_ROWS).to_csv(index=False, lineterminator="\n"))
    answers = Path(folder) / "answers.json"
    return (
        f"\nSaved to {folder}, with {min(_SAVED_ROWS, len(rows))} rows in {path.name}. Next:\n"
        f"  avcg explain {folder} {path} --out {answers}\n"
        f"  avcg report {folder} {answers} --out report.html\n"
        f"  avcg serve {folder} --rows {path}"
    )


def _promise(recourse: AVCG, caught: list[warnings.WarningMessage]) -> str:
    other = [str(warning.message) for warning in caught if not issubclass(warning.category, PromiseWarning)]
    return " ".join([str(recourse.calibration_), *other])


def _people(answers: Counterfactuals) -> Any:
    from rich import box
    from rich.table import Table

    heads = ("row", "decision now", "to become", "what to change", "how sure")
    table = Table(*heads, box=box.SIMPLE_HEAD, title="The smallest changes for three people", title_justify="left")
    table.title_style, table.show_lines = "bold", True
    for row in answers:
        option = row.options[0]
        changes = "\n".join(f"{name}: {_number(a)} -> {_number(b)}" for name, (a, b) in option.changes.items())
        table.add_row(str(row.index), "malignant", str(row.target), changes, _certain(option, answers))
    return table


def _certain(option: Option, answers: Counterfactuals) -> str:
    votes = None if answers.certificate is None else option.agreement(answers.certificate.n)
    return option.status if votes is None else f"{option.status}\n{votes}"


def _number(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _figures(explainers: dict[str, Any], X: pd.DataFrame, train: Any, model: Classifier, judges: Any) -> Any:
    """A table that compares methods on the same rows, judged by ten retrains that no method has seen."""
    from rich import box
    from rich.table import Table

    space = table_of(model.space_)
    assert space is not None
    table = Table("method", "valid", "survives 10 retrains", "L1", "columns changed", "to 5 nearest of the target",
                  "ms a row", box=box.SIMPLE_HEAD, title=f"{len(X)} people, both directions", title_justify="left",
                  title_style="bold")  # fmt: skip
    x, rows = space.encode(X), space.encode(train.X)
    labels = class_positions(np.asarray(train.y), model.classes_)
    for name, explainer in explainers.items():
        explainer.generate(X.iloc[:2])
        started = time.perf_counter()
        answers = explainer.generate(X)
        seconds = time.perf_counter() - started
        x_cf, target = space.encode(answers.frame), class_positions(answers.target, model.classes_)
        with torch.no_grad():
            survival = (judges.log_probs(x_cf).argmax(dim=-1) == target).float().mean()
        distances = torch.cat(
            [distance_to_rows(x_cf[target == c], rows[labels == c]) for c in target.unique().tolist()]
        )
        cells = (
            f"{(model.predict(answers.frame) == answers.target).mean():.2f}",
            f"{float(survival):.3f}",
            f"{float(l1_distance(space.encoding, x_cf, x).mean()):.1f}",
            f"{float(columns_changed(space.encoding, x_cf, x).float().mean()):.1f}",
            f"{float(distances.mean()):.1f}",
            f"{1e3 * seconds / len(X):.2f}",
        )
        table.add_row(name, *cells)
    return table
