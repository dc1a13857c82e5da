"""Exporting a generator and the models that judge its answers as ONNX graphs, which need no torch."""

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
from avcg.hypotheses.linear import linear_logits
from avcg.hypotheses.on_device import OnDevice
from avcg.hypotheses.predictors import Joined, Predictors, Stacked
from avcg.io.scorer import GENERATOR, JUDGES, TABLES
from avcg.io.spaces import pack_encoding, pack_limits
from avcg.io.tensors import write_tensors
from avcg.method.generator import Condition, Generator
from avcg.space.relax import Relaxation
from avcg.space.tabular import TabularSpace

if TYPE_CHECKING:
    from avcg.explainers.amortized import Amortized

_OPSET = 20
_PACKAGES = ("onnx", "onnxscript", "onnxruntime")
_TOLERANCE = 1e-4  # largest difference between a graph and its torch module, on reference rows


def missing_dependency() -> str | None:
    """The first package that exporting needs and that is not installed; None if all are installed."""
    return next((name for name in _PACKAGES if find_spec(name) is None), None)


class ProposalModule(nn.Module):
    """The generator as one module: from encoded rows, targets, margins, noise and limits to feasible candidates.

    Args:
        generator: The generator, on the CPU.
        space: Space of the rows.
    """

    def __init__(self, generator: Generator, space: TabularSpace) -> None:
        super().__init__()
        self.generator = generator
        self._relaxation = Relaxation.of(space.encoding, space.feasible, torch.device("cpu"), torch.float32)
        self._limits = tuple(space.codes.coded)

    def forward(
        self, x: Tensor, target: Tensor, margin: Tensor, typicality: Tensor, noise: Tensor, *limits: Tensor
    ) -> Tensor:
        """Feasible candidates (B, D).

        Args:
            x: (B, D) encoded rows.
            target: (B,) target classes.
            margin: (B,) margins.
            typicality: (B,) how typical answers are to be.
            noise: (B, L) latent noise.
            *limits: Arrays of the query, in the order of `TableCodes.coded`.
        """
        arrays = dict(zip(self._limits, limits, strict=True))
        own = self._relaxation
        relaxation = replace(own, limits=own.limits.with_arrays(arrays), cap=arrays["cap"])
        features = margin[:, None]  # a placeholder: a "latent" decoder does not read it
        if self.generator.kind != "latent":
            features = relaxation.constraint_features(x, self.generator.reach)
        # In float64, as an explainer computes them.
        condition = Condition(x.double(), target, features, margin, typicality)
        proposal = self.generator.propose(condition, noise.double())
        gates = None if proposal.gates is None else proposal.gates > 0
        return relaxation.relax(proposal.raw.float(), x, gates)


class JudgeModule(nn.Module):
    """Hypotheses as one module: from encoded rows (N, D) to probabilities (S, N, C).

    Args:
        predictors: Hypotheses that are networks.
    """

    def __init__(self, predictors: Predictors) -> None:
        super().__init__()
        self._predictors = predictors

    def forward(self, x: Tensor) -> Tensor:
        """Probabilities (S, N, C) of encoded rows (N, D), in float64, as an explainer computes them."""
        return _log_probs(self._predictors, x.double()).exp()


def _log_probs(predictors: Predictors, x: Tensor) -> Tensor:
    """(S, N, C) log-probabilities without a loop over chunks of rows, since a graph takes any number of rows."""
    if isinstance(predictors, Joined):
        log_probs = torch.cat([_log_probs(group, x) for group in predictors.groups])
        return log_probs if predictors._order is None else log_probs[predictors._order]
    assert isinstance(predictors, Stacked)
    assert predictors._plan is not None
    return torch.log_softmax(predictors._plan.run(x, predictors.overrides_in(x.dtype), len(predictors)), dim=-1)


def are_networks(predictors: Predictors | None) -> bool:
    """Whether hypotheses are stacks of layers, which can be exported; also true of None."""
    if isinstance(predictors, OnDevice):
        return are_networks(predictors.inner)
    if isinstance(predictors, Joined):
        return all(are_networks(group) for group in predictors.groups)
    return predictors is None or (isinstance(predictors, Stacked) and predictors._plan is not None)


def generator_graph(explainer: Amortized) -> bytes:
    """Export the generator of a fitted explainer, and compare the graph with it.

    Args:
        explainer: A fitted explainer of tables.

    Returns:
        The graph, as the bytes of an ONNX file.

    Raises:
        SettingError: If it is an explainer of images.
    """
    space = explainer.space_
    if not isinstance(space, TabularSpace):
        raise SettingError("Only generators of tables can be exported. This explainer is of images.")
    module = ProposalModule(copy.deepcopy(explainer.generator_).cpu().double(), space).eval()
    x = torch.cat([rows[:64] for rows in explainer.reference_set_.rows])
    target = torch.arange(len(x)) % len(explainer.classes_)
    rng = torch.Generator().manual_seed(0)
    noise = torch.randn(len(x), explainer.generator_.n_latent, generator=rng)
    requests = space.random_requests(len(x), 0.5, np.random.default_rng(0))
    margin, typicality = torch.linspace(-1.0, 4.0, len(x)), torch.linspace(0.0, 1.0, len(x))
    inputs = {"x": x, "target": target, "margin": margin, "typicality": typicality, "noise": noise}
    limits = {name: torch.from_numpy(np.array(value)) for name, value in requests.codes.coded.items()}
    return _export(module, inputs, "candidates", limits)


def scorer_parts(explainer: Amortized) -> tuple[dict[str, Any], dict[str, bytes]]:
    """The graphs and tables that `avcg.io.scorer.Scorer` answers from.

    Args:
        explainer: A fitted explainer of tables whose models are networks.

    Returns:
        The entry of the manifest, and the files by name.

    Raises:
        SettingError: If the explainer is of images, or its models cannot be exported.
    """
    held_out, judges, space = explainer.split_.held_out, explainer.judges_, explainer.space_
    if not (are_networks(judges) and are_networks(held_out)) or not isinstance(space, TabularSpace):
        raise SettingError(
            "Graphs need an explainer of tables, and models that are networks of linear layers. Save without graphs."
        )
    generator = generator_graph(explainer)
    models = [_on_cpu(predictors) for predictors in (judges, held_out) if predictors is not None]
    n_test, deployed = explainer.split_.n_test, explainer.split_.deployed
    _, arrays = pack_encoding(space.encoding, space.feasible.links)
    arrays |= pack_limits(space.encoding, space.feasible)
    arrays |= {f"reference.{i}": rows.cpu().numpy() for i, rows in enumerate(explainer.reference_set_.rows)}
    config = explainer.recipe_.search
    arrays["latents"] = explainer.search.latents(max(config.latents_per_answer * MOST_ANSWERS, config.retry_latents))
    arrays["deployed.weights"], arrays["judges.weights"] = deployed.weights.numpy(), judges.weights.numpy()
    linear = linear_logits(deployed) if len(deployed) == 1 else None
    if linear is not None:
        arrays["deployed.linear"], arrays["deployed.offset"] = linear[0][0], linear[1][0]
    bounds = clopper_pearson(np.arange(n_test + 1), n_test, config.confidence) if n_test else np.zeros(1)
    files = {
        GENERATOR: generator,
        JUDGES: judge_graph(Joined(models), torch.cat([rows[:64] for rows in explainer.reference_set_.rows])),
        TABLES: write_tensors({**arrays, "lower_bounds": bounds}),
    }
    n_held_out = 0 if held_out is None else len(held_out)
    entry = {"n_deployed": len(deployed), "n_judges": len(judges), "n_held_out": n_held_out, "n_test": n_test}
    return {**entry, "single_pass": explainer.recipe_.single_pass}, files


def _on_cpu(predictors: Predictors) -> Predictors:
    if isinstance(predictors, Joined) and predictors._order is None:
        return Joined([_on_cpu(group) for group in predictors.groups])
    return predictors.inner.to("cpu") if isinstance(predictors, OnDevice) else predictors


def judge_graph(predictors: Predictors, x: Tensor) -> bytes:
    """Export hypotheses that are networks, and compare the graph with them.

    Args:
        predictors: Hypotheses θ_1..θ_S.
        x: (N, D) encoded rows to compare on.

    Returns:
        The graph, as the bytes of an ONNX file.
    """
    module = JudgeModule(predictors).eval()
    module(x[:1])  # weights are converted to float64 here once, and not by the exporter, whose tensors have no content
    return _export(module, {"x": x}, "probabilities")


@torch.no_grad()
def _export(
    module: nn.Module, named: Mapping[str, Tensor], output: str, extra: Mapping[str, Tensor] | None = None
) -> bytes:
    """Export a module as a graph that takes any number of rows.

    Args:
        module: Module to export.
        named: Example inputs by name, each a parameter of the module.
        output: Name of the output.
        extra: Example inputs by name that the module takes as ``*parameters``; None: there are none.

    Raises:
        ArtifactError: If the outputs of graph and module differ.
    """
    try:
        import onnxruntime
        import onnxscript  # noqa: F401  torch exports with it
    except ImportError as error:
        raise MissingExtraError(str(error.name), "onnx", "Exporting to ONNX") from None
    rows, inputs = torch.export.Dim("rows", min=1), {**named, **(extra or {})}
    shapes: list[Any] = [{0: rows} for _ in named]
    if extra:
        shapes.append(tuple({0: rows} for _ in extra))
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
    for count in (len(named["x"]), 1):
        first = {name: value[:count] for name, value in inputs.items()}
        (result,) = session.run([output], {name: value.numpy() for name, value in first.items()})
        difference = float(np.abs(result - module(*first.values()).numpy()).max())
        if not difference <= _TOLERANCE:
            raise ArtifactError(
                f"The outputs of the exported graph differ by {difference:.2g} from those of its network; at most"
                f" {_TOLERANCE:g} was expected. This is a defect of avcg or of the exporter: report it."
            )
    return content


def _searchsorted(knots: Any, values: Any) -> Any:
    """The number of knots below each value, as operators of ONNX; the exporter has no translation of its own."""
    from onnxscript import opset20

    op: Any = opset20
    last = op.Constant(value_ints=[-1])
    below = op.Cast(op.Less(knots, op.Unsqueeze(values, last)), to=7)  # 7: int64
    return op.ReduceSum(below, last, keepdims=0)


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence logs and warnings of the exporter, which are about its own code."""
    log = logging.getLogger("torch.onnx")
    level = log.level
    log.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        log.setLevel(level)
