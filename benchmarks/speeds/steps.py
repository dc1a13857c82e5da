"""Training: one step beside the matrix products in it, and beside the same step with a loop over hypotheses."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor, nn

from avcg import AVCG, Classifier, Recipe, TabularSpace, datasets, retrains
from avcg.hypotheses.finite import FiniteSet
from avcg.hypotheses.predictors import Predictors, Stacked
from avcg.method.deployed import DeployedModel
from avcg.method.recipe import GeneratorLoss
from avcg.method.reference_set import ReferenceSet
from avcg.models.adapter import class_positions
from avcg.models.networks import draw_state, mlp
from avcg.models.training import adam
from speeds.models import member

N_HYPOTHESES, N_LATENTS = 50, 5


class Looped(Predictors):
    """The same hypotheses, called one after the other as most code does."""

    def __init__(self, stacked: Stacked) -> None:
        self.weights = stacked.weights
        self.members = [member(stacked.network, stacked.overrides, i) for i in range(len(stacked))]

    def log_probs(self, x: Tensor) -> Tensor:
        """(N, *event) to (S, N, C)."""
        return torch.stack([torch.log_softmax(one(x), dim=-1) for one in self.members])

    def subset(self, chosen: Tensor) -> Predictors:
        """Not needed here."""
        raise NotImplementedError


def train(device: str, repeats: int) -> None:
    """A step of training on Adult with 50 hypotheses and 5 latents."""
    table = Table(
        "recipe", "step (ms)", "bare products (ms)", "bare / step", "looped (ms)", "looped / step", "losses differ by",
        title=f"One step on Adult, {N_HYPOTHESES} hypotheses, {N_LATENTS} latents, {device}",
    )  # fmt: skip
    for name, recipe in (("the paper's", Recipe.paper()), ("default", Recipe())):
        recipe = replace(recipe, n_hypotheses=N_HYPOTHESES, n_latents=N_LATENTS)
        together, looped = (_Step(recipe, device, loop=loop) for loop in (False, True))
        bare = _bare_products(together, device)
        apart = max(abs(a - b) for a, b in ((together.loss(), looped.loss()) for _ in range(5)))
        times = [tuple(_seconds(work, device) for work in (together, bare, looped)) for _ in range(4 * repeats + 3)][3:]
        ours, limit, slow = (1e3 * statistics.median(column) for column in zip(*times, strict=True))
        share, gain = (statistics.median(t[i] / t[0] for t in times) for i in (1, 2))
        table.add_row(name, f"{ours:.1f}", f"{limit:.1f}", f"{share:.2f}", f"{slow:.1f}", f"{gain:.1f}", f"{apart:.1e}")
    Console(width=140).print(table)
    print("asked: bare / step at least 0.35 on two cores; looped / step at least 8 on a GPU, losses the same to 1e-4")


def _seconds(work: Callable[[], object], device: str) -> float:
    started = time.perf_counter()
    work()
    if device != "cpu":
        torch.cuda.synchronize()
    return time.perf_counter() - started


class _Step:
    """Rows, requests, chance, loss, gradients and Adam, as in a fit."""

    def __init__(self, recipe: Recipe, device: str, *, loop: bool) -> None:
        data = datasets.load("adult")
        assert data.schema is not None
        space = TabularSpace.fit(data.schema, data.X)
        self.x = space.encode(data.X.iloc[:20_000]).to(device)
        self.recipe = recipe = recipe.scaled_to(space)
        rng = torch.Generator().manual_seed(0)
        self.network = mlp(self.x.shape[1], 2, (64, 64), rng=rng)
        stacked = Stacked(self.network, draw_state(self.network, N_HYPOTHESES, rng)).to(device)
        deployed = DeployedModel(Stacked(self.network, {}).to(device), None)
        self.generator = recipe.build_generator(space, 2, rng=rng).to(device)
        needed = recipe.weights.plausibility
        references = ReferenceSet.robust(stacked, self.x, None, recipe.reference, rng) if needed else None
        teachers = FiniteSet(Looped(stacked) if loop else stacked)
        self.lesson = GeneratorLoss(self.generator, space, self.x, teachers, deployed, recipe, references, rng)
        if loop:  # as most code does, each operation by itself
            self.lesson.steady = None
        self.optimizer = adam(list(self.generator.parameters()), recipe.learning_rate)
        self.rows = torch.randint(len(self.x), (recipe.batch_size,), generator=rng)

    def __call__(self) -> None:
        self.optimizer.zero_grad(set_to_none=True)
        self.lesson(self.rows).backward()
        self.optimizer.step()

    def loss(self) -> float:
        """Under chance that is drawn anew at each call, and the same for all steps at their first, second, ... call."""
        return float(self.lesson(self.rows).detach())


def _bare_products(step: _Step, device: str) -> Callable[[], None]:
    """The matrix products of a step and no more: forward, to the weights and to the inputs where these are needed."""
    rows, recipe = len(step.rows), step.recipe
    own = [(layer, rows) for layer in _linear(step.generator.encoder)]
    own += [(layer, rows * recipe.n_latents) for layer in _linear(step.generator.decoder)]
    learnt = [
        (
            torch.randn(n, layer.in_features, device=device),
            torch.randn(layer.in_features, layer.out_features).to(device),
        )
        for layer, n in own
    ]
    # Teachers as they are run fastest: in turn on a CPU, where one product fills a core, at once on a GPU.
    count = N_HYPOTHESES + recipe.train_on_deployed
    lead = (count,) if device != "cpu" else ()
    asked = [
        (
            torch.randn(*lead, rows * recipe.n_latents, layer.in_features, device=device),
            torch.randn(*lead, layer.in_features, layer.out_features, device=device),
        )
        for layer in _linear(step.network)
    ]

    def products() -> None:
        for x, weight in learnt:
            y = x @ weight
            x.T @ y
            y @ weight.T
        for _ in range(1 if lead else count):
            for x, weight in asked:
                (x @ weight) @ weight.mT

    return products


def _linear(network: nn.Module) -> list[nn.Linear]:
    return [layer for layer in network.modules() if isinstance(layer, nn.Linear)]


def fit(folder: str | None) -> None:
    """Whole fits of Adult, and what comes of them: judged on test rows by ten bootstrap retrains they have not seen."""
    data = datasets.load("adult")
    known, _, test = data.split(seed=0)
    started = time.perf_counter()
    model = Classifier((64, 64), dropout=0.1, schema=data.schema).fit(known.X, known.y)
    hypotheses = retrains(model, known.X, known.y, n=20, resampling="bootstrap", random_state=0)
    print(f"a network and 20 retrains: {time.perf_counter() - started:.0f} s")
    judges = retrains(model, known.X, known.y, n=10, resampling="bootstrap", random_state=1)
    for name, recipe in (("half the rows a step", Recipe(batch_size=128)), ("default", Recipe())):
        for seed in (0, 1):
            started = time.perf_counter()
            fitted = AVCG(hypotheses, recipe=recipe, random_state=seed).fit(known.X, known.y)
            seconds = time.perf_counter() - started
            found = fitted.generate(test.X.iloc[:1000], effort="fast")
            x, wanted = fitted.space_.encode(found.frame), class_positions(found.target, fitted.classes_)
            survival = fitted.deployed_.agreement(judges.predictors, x, wanted).mean()
            print(
                f"{name}, seed {seed}: {seconds:.0f} s (asked: at most 60); 1,000 test rows, each to its other class:"
                f" {np.mean(found.statuses == 'ok'):.3f} ok, survival {survival:.4f},"
                f" distance {found.distance.mean():.2f}",
                flush=True,
            )
    if folder is not None:
        fitted.save(folder, graphs=True, about={"positive": ">50K"})
