"""Pictures on a GPU: training and generation on CIFAR-10, beside the same on a CPU and the card's bare products."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import nn

from avcg import Classifier, MCDropout, Recipe, datasets
from avcg.method.deployed import DeployedModel
from avcg.method.generator import Condition, Generator
from avcg.method.recipe import GeneratorLoss
from avcg.models.precision import full_precision
from avcg.models.training import adam

_SIDE = 8192  # of the square matrices whose product is the card's rate


def gpu(device: str, repeats: int) -> None:
    """A step of training and a pass of generation on CIFAR-10, in pictures a second and in operations a second."""
    train, _, _ = datasets.load("cifar10").split(seed=0)
    X, y = train.X[:8192], train.y[:8192]
    model = Classifier((32, 64), dropout=0.15, epochs=1, batch_size=256).fit(X, y)
    size = {"encoder": (32, 64), "layers": (32, 64), "n_latent": 16}
    recipe = replace(Recipe.paper(), **size, n_hypotheses=50, n_latents=5, batch_size=64).scaled_to(model.space_)
    table = Table(
        "what", "pictures a second", "Tflop/s", "share of bare products", "loss or answers off by",
        title="CIFAR-10, the paper's recipe: 50 hypotheses, 5 latents",
    )  # fmt: skip
    operations = _operations(model, recipe)
    found: dict[tuple[str, str], float] = {}
    losses, answers = {}, {}
    for where in dict.fromkeys(("cpu", device)):
        rate = _bare_rate(where, repeats)
        step, losses[where] = _training(model, recipe, X, where)
        generation, answers[where] = _generation(model, recipe, X, where)
        works = {"training": step, "generation": generation}
        if where != "cpu":
            works["training, half"], losses["half"] = _training(model, replace(recipe, bfloat16=True), X, where)
        for name, (work, pictures) in works.items():
            seconds = _median(work, where, repeats)
            found[name, where] = pictures / seconds
            apart = (
                _apart(answers, where) if name == "generation" else _apart(losses, "half" if "half" in name else where)
            )
            speed = operations[name.partition(",")[0]] * pictures / seconds
            table.add_row(
                f"{name}, {where}", f"{pictures / seconds:,.0f}", f"{1e-12 * speed:.2f}", f"{speed / rate:.2f}", apart
            )
        table.add_row(f"bare products, {where}", "", f"{1e-12 * rate:.2f}", "1", "")
    Console(width=120).print(table)
    for name in ("training", "generation"):
        print(f"{name}: {found[name, device] / found[name, 'cpu']:.0f} times the CPU's")


def _median(work: Callable[[], object], device: str, repeats: int) -> float:
    times = []
    for _ in range(repeats + 1):
        started = time.perf_counter()
        work()
        if device != "cpu":
            torch.cuda.synchronize()
        times.append(time.perf_counter() - started)
    return statistics.median(times[1:])


def _operations(model: Classifier, recipe: Recipe) -> dict[str, float]:
    """Of one picture in all products: forward in generation; to weights and inputs too in training, for K latents."""
    generator, shape = _generator(model, recipe), model.space_.event_shape
    counts: dict[str, float] = {}

    def count(part: str, layer: nn.Module, output: torch.Tensor) -> None:
        if isinstance(layer, nn.Conv2d):
            counts[part] += 2 * output.numel() * layer.weight[0].numel()
        elif isinstance(layer, nn.Linear):
            counts[part] += 2 * output.numel() * layer.in_features

    x, target = torch.zeros(1, *shape), torch.zeros(1, dtype=torch.long)
    request = Condition(x, target, model.space_.constraint_features(x), torch.zeros(1))
    network = model.network_
    parts = {"encoder": generator.encoder, "decoder": generator.decoder, "asked": network}
    for part, module in parts.items():
        counts[part] = 0.0
        for layer in module.modules():
            layer.register_forward_hook(lambda layer, _, output, part=part: count(part, layer, output))
    with torch.no_grad():
        generator(request, generator.posterior(request).mean[None])
        network(x)
    for module in parts.values():
        for layer in module.modules():
            layer._forward_hooks.clear()
    learnt = counts["encoder"] + recipe.n_latents * counts["decoder"]
    asked = recipe.n_hypotheses * recipe.n_latents * counts["asked"]
    return {"training": 3 * learnt + 2 * asked, "generation": counts["encoder"] + counts["decoder"]}


def _bare_rate(device: str, repeats: int) -> float:
    """Operations a second of a large product in float32, as generation is."""
    side = _SIDE if device != "cpu" else 2048
    left, right = (torch.randn(side, side, device=device) for _ in range(2))
    return 2 * side**3 / _median(lambda: left @ right, device, 3 * repeats)


def _generator(model: Classifier, recipe: Recipe) -> Generator:
    return recipe.build_generator(model.space_, 10, rng=torch.Generator().manual_seed(0))


def _training(
    model: Classifier, recipe: Recipe, X: np.ndarray, device: str
) -> tuple[tuple[Callable[[], object], int], float]:
    """A step and how many pictures it sees, and the loss of the first."""
    space, rng = model.space_, torch.Generator().manual_seed(0)
    generator, hypotheses = _generator(model, recipe).to(device), MCDropout(model)
    deployed = DeployedModel(hypotheses.deterministic().to(device), None)
    lesson = GeneratorLoss(generator, space, space.encode(X[:2048]).to(device), hypotheses, deployed, recipe, None, rng)
    optimizer = adam(list(generator.parameters()), recipe.learning_rate)
    rows = torch.arange(recipe.batch_size)

    def step() -> None:
        optimizer.zero_grad(set_to_none=True)
        lesson(rows).backward()
        optimizer.step()

    return (step, recipe.batch_size), float(lesson(rows).detach())


@torch.no_grad()
def _generation(
    model: Classifier, recipe: Recipe, X: np.ndarray, device: str
) -> tuple[tuple[Callable[[], torch.Tensor], int], torch.Tensor]:
    """A pass from codes to feasible pictures and how many there are, and what comes of the first."""
    space, generator = model.space_, _generator(model, recipe).to(device)
    x = space.encode(X).to(device)
    request = Condition(
        x, torch.ones(len(x), dtype=torch.long, device=device), space.constraint_features(x), x.new_zeros(len(x))
    )

    def propose() -> torch.Tensor:
        with torch.no_grad(), full_precision(x.device):
            return generator(request, generator.posterior(request).mean[None]).raw

    return (lambda: space.finalize(propose(), x), len(x)), propose()[:, :256].cpu()


def _apart(found: dict[str, float] | dict[str, torch.Tensor], where: str) -> str:
    """By how much this place differs from the CPU."""
    if where == "cpu":
        return ""
    return f"{float(np.abs(np.asarray(found[where]) - np.asarray(found['cpu'])).max()):.1e}"
