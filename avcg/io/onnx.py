"""A generator, and the models that judge it, as ONNX graphs that need no torch."""

from __future__ import annotations

import copy
import logging
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import Tensor, nn

from avcg.errors import ArtifactError, MissingExtraError, SettingError
from avcg.explainers.records import MOST_ANSWERS
from avcg.guarantees.bounds import clopper_pearson
from avcg.hypotheses.predictors import Joined, OnDevice, Predictors, Stacked
from avcg.io.scorer import GENERATOR, JUDGES, TABLES
from avcg.io.spaces import pack_encoding, pack_limits
from avcg.io.tensors import write_tensors
from avcg.method.generator import Condition, Generator
from avcg.space.relax import Relaxation
from avcg.space.tabular import TabularSpace

if TYPE_CHECKING:
    from avcg.explainers.amortized import Amortized

_OPSET = 20
_NEEDED = ("onnx", "onnxscript", "onnxruntime")
_CLOSE = 1e-4  # the most that a graph may differ from what it was made from, on rows of the bank


def missing_dependency() -> str | None:
    """The first of the packages that exporting needs and that is not installed."""
    return next((name for name in _NEEDED if find_spec(name) is None), None)


class Answering(nn.Module):
    """From encoded rows, targets, margins, noise and freedom to what the decoder proposes within its limits.

    Args:
        generator: The two networks, on the CPU.
        space: Of tables.
    """

    def __init__(self, generator: Generator, space: TabularSpace) -> None:
        super().__init__()
        self.generator = generator
        self._relaxation = Relaxation.of(space.encoding, space.feasible, torch.device("cpu"), torch.float32)
        self._limits = tuple(space.codes.coded)

    def forward(self, x: Tensor, target: Tensor, margin: Tensor, noise: Tensor, *limits: Tensor) -> Tensor:
        """(B, D), (B,), (B,), (B, L) and what differs from query to query, see `TableCodes.coded`, to (B, D)."""
        arrays = dict(zip(self._limits, limits, strict=True))
        own = self._relaxation
        relaxation = replace(own, limits=own.limits.with_arrays(arrays), cap=arrays["cap"])
        constraint_features = margin[:, None] if self.generator.kind == "latent" else relaxation.constraint_features(x)
        request = Condition(x, target, constraint_features, margin)
        proposal = self.generator.propose(request, noise)
        gates = None if proposal.gates is None else proposal.gates > 0
        return relaxation.relax(proposal.raw, x, gates)


class Judging(nn.Module):
    """From codes to the probabilities of every hypothesis, (N, D) to (S, N, C).

    Args:
        predictors: Networks alone.
    """

    def __init__(self, predictors: Predictors) -> None:
        super().__init__()
        self._predictors = predictors

    def forward(self, x: Tensor) -> Tensor:
        """(N, D) to (S, N, C)."""
        return _all_at_once(self._predictors, x).exp()


def _all_at_once(predictors: Predictors, x: Tensor) -> Tensor:
    """Log-probabilities without chunks of rows, which a graph of any number of rows cannot have."""
    if isinstance(predictors, Joined):
        together = torch.cat([_all_at_once(group, x) for group in predictors.groups])
        return together if predictors._order is None else together[predictors._order]
    assert isinstance(predictors, Stacked)
    assert predictors._plan is not None
    return torch.log_softmax(predictors._plan.run(x, predictors.overrides, len(predictors)), dim=-1)


def are_networks(predictors: Predictors | None) -> bool:
    """Whether hypotheses are stacks of layers, of which there can be a graph."""
    if isinstance(predictors, OnDevice):
        return are_networks(predictors.inner)
    if isinstance(predictors, Joined):
        return all(are_networks(group) for group in predictors.groups)
    return predictors is None or (isinstance(predictors, Stacked) and predictors._plan is not None)


def generator_graph(explainer: Amortized) -> bytes:
    """The graph of a fitted explainer's generator, compared with it.

    Raises:
        SettingError: If it is of images.
    """
    space = explainer.space_
    if not isinstance(space, TabularSpace):
        raise SettingError("Generators of tables can be exported. This one is of images.")
    module = Answering(copy.deepcopy(explainer.generator_).cpu(), space).eval()
    x = torch.cat([rows[:64] for rows in explainer.reference_set_.rows])
    target = torch.arange(len(x)) % len(explainer.classes_)
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(len(x), explainer.generator_.n_latent, generator=rng)
    requests = space.random_requests(len(x), 0.5, np.random.default_rng(0))
    given = {"x": x, "target": target, "margin": torch.linspace(-1.0, 4.0, len(x)), "noise": noise}
    limits = {name: torch.from_numpy(np.array(value)) for name, value in requests.codes.coded.items()}
    return _export(module, given, "answer", limits)


def scorer_parts(explainer: Amortized) -> tuple[dict[str, Any], dict[str, bytes]]:
    """What `avcg.io.scorer.Scorer` answers from: plain values, and files.

    Raises:
        SettingError: If there can be no graph of the models.
    """
    fresh, train, space = explainer.split_.test, explainer.judges_, explainer.space_
    if not (are_networks(train) and are_networks(fresh)) or not isinstance(space, TabularSpace):
        raise SettingError("Graphs are for tables and models that are networks of linear layers. Save without graphs.")
    generator = generator_graph(explainer)
    everyone = [_at_home(one) for one in (train, fresh) if one is not None]
    n_test, deployed = 0 if fresh is None else len(fresh), explainer.split_.deployed
    _, arrays = pack_encoding(space.encoding, space.feasible.links)
    arrays |= pack_limits(space.encoding, space.feasible)
    arrays |= {f"reference.{i}": rows.cpu().numpy() for i, rows in enumerate(explainer.reference_set_.rows)}
    config = explainer.recipe_.search
    arrays["latents"] = explainer.search.latents(max(config.latents_per_answer * MOST_ANSWERS, config.retry_latents))
    arrays["deployed.weights"], arrays["judges.weights"] = deployed.weights.numpy(), train.weights.numpy()
    bounds = clopper_pearson(np.arange(n_test + 1), n_test, config.confidence) if n_test else np.zeros(1)
    files = {
        GENERATOR: generator,
        JUDGES: judge_graph(Joined(everyone), torch.cat([rows[:64] for rows in explainer.reference_set_.rows])),
        TABLES: write_tensors({**arrays, "lower_bounds": bounds}),
    }
    said = {"n_deployed": len(deployed), "n_judges": len(train), "n_test": n_test}
    return {**said, "single_pass": explainer.recipe_.single_pass}, files


def _at_home(predictors: Predictors) -> Predictors:
    return predictors.inner.to("cpu") if isinstance(predictors, OnDevice) else predictors


def judge_graph(predictors: Predictors, x: Tensor) -> bytes:
    """The graph of hypotheses that are networks, compared with them.

    Args:
        predictors: θ_1..θ_S.
        x: (N, D) rows to compare on.
    """
    return _export(Judging(predictors).eval(), {"x": x}, "said")


@torch.no_grad()
def _export(
    module: nn.Module, given: Mapping[str, Tensor], output: str, more: Mapping[str, Tensor] | None = None
) -> bytes:
    """A graph with any number of rows.

    Args:
        module: What to export.
        given: Inputs by name, each a parameter of the module.
        output: The name of what comes out.
        more: Inputs by name that the module takes as ``*parameters``.

    Raises:
        ArtifactError: If it says something else than the module.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  what torch exports with
    except ImportError as error:
        raise MissingExtraError(str(error.name), "onnx", "Exporting to ONNX") from None
    rows, inputs = torch.export.Dim("rows", min=1), {**given, **(more or {})}
    shapes: list[Any] = [{0: rows} for _ in given]
    if more:
        shapes.append(tuple({0: rows} for _ in more))
    with _quiet():
        program = torch.onnx.export(
            module,
            tuple(inputs.values()),
            dynamo=True,
            verbose=False,
            opset_version=_OPSET,
            input_names=list(inputs),
            output_names=[output],
            dynamic_shapes=tuple(shapes),
            custom_translation_table={torch.ops.aten.searchsorted.Tensor: _searchsorted},
        )
    assert program is not None
    content: bytes = program.model_proto.SerializeToString()
    session = onnxruntime.InferenceSession(content, providers=["CPUExecutionProvider"])
    for count in (len(given["x"]), 1):
        some = {name: value[:count] for name, value in inputs.items()}
        (found,) = session.run([output], {name: value.numpy() for name, value in some.items()})
        pairwise_distance = float(np.abs(found - module(*some.values()).numpy()).max())
        if not pairwise_distance <= _CLOSE:
            raise ArtifactError(
                f"The exported graph differs from what it was made from by {pairwise_distance:.2g}. Report this."
            )
    return content


def _searchsorted(knots: Any, values: Any) -> Any:
    """How many knots lie below each value, in ONNX's own words; the exporter knows none for it."""
    from onnxscript import opset20

    op: Any = opset20
    last = op.Constant(value_ints=[-1])
    below = op.Cast(op.Less(knots, op.Unsqueeze(values, last)), to=7)  # 7: int64
    return op.ReduceSum(below, last, keepdims=0)


@contextmanager
def _quiet() -> Iterator[None]:
    """What an exporter says of itself is of no use to anyone, and some of it are warnings about its own code."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
