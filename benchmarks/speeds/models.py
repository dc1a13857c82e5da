"""Many hypotheses at once: asked, and trained."""

from __future__ import annotations

import copy
import statistics
import time
from collections.abc import Callable

import torch
from rich.console import Console
from rich.table import Table

from avcg import Classifier, Training, datasets
from avcg.hypotheses.predictors import Stacked
from avcg.models.adapter import class_positions
from avcg.models.dropout_masks import draw_masks, with_noise
from avcg.models.networks import draw_state, initialise, mlp
from avcg.models.stacked_fit import fit_stacked


def hypotheses(device: str, repeats: int) -> None:
    """Forward and backward to the inputs for S hypotheses at once, against calling S networks in a loop."""
    network = mlp(30, 2, (64, 64), dropout=0.1)
    noisy, sites = with_noise(network, (30,))
    for kind in ("own weights", "dropout masks"):
        table = Table("S", "N", "loop (ms)", "ours (ms)", "loop / ours", title=f"{kind}, 30-64-64-2, {device}")
        for count in (5, 20, 50, 100):
            generator = torch.Generator().manual_seed(count)
            if kind == "own weights":
                base, overrides = network, draw_state(network, count, generator)
            else:
                base, overrides = noisy, draw_masks(sites, (count,), generator)
            ours = Stacked(base, overrides).to(device)
            members = [member(base, overrides, i).to(device) for i in range(count)]
            for rows in (1, 64, 640, 4096):
                x = torch.randn(rows, 30, generator=generator).to(device).requires_grad_()
                slow, fast, ratio = _versus(
                    lambda x=x, members=members: torch.stack([torch.log_softmax(one(x), -1) for one in members]),
                    lambda x=x, ours=ours: ours.log_probs(x),
                    x,
                    repeats,
                )
                table.add_row(str(count), str(rows), f"{1e3 * slow:.2f}", f"{1e3 * fast:.2f}", f"{ratio:.2f}")
        Console().print(table)


def member(network: torch.nn.Module, overrides: dict[str, torch.Tensor], i: int) -> torch.nn.Module:
    """One of many hypotheses as a network of its own."""
    member = copy.deepcopy(network).eval().requires_grad_(False)
    member.load_state_dict({name: value[i] for name, value in overrides.items()}, strict=False)
    return member


def _versus(
    slow: Callable[[], torch.Tensor], fast: Callable[[], torch.Tensor], x: torch.Tensor, repeats: int
) -> tuple[float, float, float]:
    """Median times of forward and backward of both, turn by turn, and the median of their ratios."""

    def timed(work: Callable[[], torch.Tensor]) -> float:
        x.grad = None
        started = time.perf_counter()
        work().sum().backward()
        if x.is_cuda:
            torch.cuda.synchronize()
        return time.perf_counter() - started

    timed(slow), timed(fast), timed(slow), timed(fast)
    turns = max(5, min(repeats * 20, int(2.0 / (timed(slow) + timed(fast)))))
    pairs = [(timed(slow), timed(fast)) for _ in range(turns)]
    times = [statistics.median(values) for values in zip(*pairs, strict=True)]
    return times[0], times[1], statistics.median(a / b for a, b in pairs)


def retraining(device: str, repeats: int) -> None:
    """Twenty networks on Adult as one stacked network, against twenty plain PyTorch fits of the same steps in turn."""
    data = datasets.load("adult")
    train, validation, _ = data.split(seed=0)
    model = Classifier(hidden=(64, 64), epochs=1, schema=data.schema).fit(train.X, train.y)
    x, y = model.space_.encode(train.X).to(device), class_positions(train.y, model.classes_).to(device)
    held, labels = model.space_.encode(validation.X), class_positions(validation.y, model.classes_)
    settings = Training(epochs=3, batch_size=128, patience=None)
    rows = torch.stack([torch.randperm(len(x), generator=torch.Generator().manual_seed(s)) for s in range(20)])

    def stacked(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        return fit_stacked(model.architecture(), x, y, rows, settings, rng=generator)[0]

    def to_json(seed: int) -> dict[str, torch.Tensor]:
        generator = torch.Generator().manual_seed(seed)
        network = initialise(model.architecture(), generator).to(device).train()
        optimizer = torch.optim.Adam(network.parameters(), lr=settings.learning_rate)
        for _ in range(settings.epochs):
            for batch in torch.randperm(len(x), generator=generator).split(settings.batch_size):
                optimizer.zero_grad(set_to_none=True)
                torch.nn.functional.cross_entropy(network(x[batch]), y[batch]).backward()
                optimizer.step()
        return {name: value.detach()[None] for name, value in network.named_parameters()}

    ratios = []
    for turn in range(repeats):
        started = time.perf_counter()
        together = stacked(turn)
        halfway = time.perf_counter()
        apart = [to_json(turn * 100 + s) for s in range(20)]
        ratios.append((time.perf_counter() - halfway, halfway - started))
        in_turn = {name: torch.cat([state[name] for state in apart]) for name in together}
        accuracy = [
            1
            - Stacked(model.architecture(), {n: v.cpu() for n, v in state.items()})
            .losses(held, labels, "zero_one")
            .mean()
            for state in (together, in_turn)
        ]
        print(
            f"20 networks on Adult, {settings.epochs} epochs: one after the other {ratios[-1][0]:.1f} s, stacked"
            f" {ratios[-1][1]:.1f} s, ratio {ratios[-1][0] / ratios[-1][1]:.2f}; accuracy {accuracy[1]:.4f} and"
            f" {accuracy[0]:.4f}"
        )
    print(f"median ratio {statistics.median(a / b for a, b in ratios):.2f}")
