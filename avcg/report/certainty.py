"""Sections of a page about how sure answers are: the votes of held-out models, before and after a change."""

from __future__ import annotations

import math
from collections import Counter
from typing import Any

import numpy as np

from avcg.explainers.base import Explainer
from avcg.explainers.counterfactuals import Counterfactuals
from avcg.guarantees.certificate import Certificate
from avcg.guarantees.statement import agreement, discovery
from avcg.report.page import at_least, figure, percent, precise
from avcg.report.population import Opinions, delivered, opinions
from avcg.report.svg import Words, mirrored, share_bar

_MAX_COUNTS = 12  # numbers of votes that are listed
_NO_MODELS = "No models are held back from training."


def sure_of(first: Counterfactuals, noun: str, assumption: str | None) -> dict[str, Any] | str:
    """The section on how many held-out models accept the answers, or why it is left out.

    Args:
        first: The first answer of each row.
        noun: What the rows are, in the plural.
        assumption: How the next model is made, in words; None: it is like the held-out models.
    """
    valid, sure = delivered(first), first.certificate
    if sure is None:
        return _NO_MODELS
    if not valid.any():
        return "No decision flips."
    n, judged = int(valid.sum()), sure.take(np.flatnonzero(valid))
    counted = sorted(Counter(judged.agreeing.tolist()).items(), reverse=True)
    return {
        "models": sure.n,
        "survival": precise(first.survival),
        "lines": [
            {
                "votes": agreement(agreeing, sure.n),
                "count": count,
                "share": percent(count / n),
                "bar": share_bar(count / n, 0.0, 0.0, f"{count} of {n} {noun}"),
            }
            for agreeing, count in counted[:_MAX_COUNTS]
        ],
        "fewer": sum(count for _, count in counted[_MAX_COUNTS:]),
        "noted": assumption,
        "assumption": Certificate.ASSUMPTION,
        **_proven(judged, first.survival),
    }


def _proven(judged: Certificate, survival: float) -> dict[str, Any]:
    """What the test models prove: a line for each number of their votes, and what all answers together show.

    Args:
        judged: The certificate of the answers that flip the decision.
        survival: Share of all models that an answer is to be accepted by.
    """
    n, rates = len(judged.agreeing), judged.false_discovery_rate(survival)
    columns = (judged.agreeing_test.tolist(), judged.lower_bound.tolist(), rates.tolist())
    proven = sorted(Counter(zip(*columns, strict=True)).items(), reverse=True)
    lowest = float(rates.min())
    return {
        "test": judged.n_test,
        "answers": n,
        "confidence": precise(judged.confidence),
        "misses": figure(100 * (1 - judged.confidence)),
        "proven": [
            {"votes": f"{votes} of {judged.n_test}", "bound": at_least(bound), "rate": f"{rate:.3f}", "count": count}
            for (votes, bound, rate), count in proven[:_MAX_COUNTS]
        ],
        "discovery": discovery(int((rates <= lowest).sum()), lowest, n, judged.n_test, survival),
    }


def opinions_of(first: Counterfactuals, explainer: Explainer | None, noun: str) -> dict[str, Any] | str:
    """The section on how the held-out models decide before and after the change, or why it is left out.

    Args:
        first: The first answer of each row.
        explainer: The fitted method with its models; None: it is not at hand.
        noun: What the rows are, in the plural.
    """
    if explainer is None:
        return "This section needs the explainer and its models."
    if explainer.split_.held_out is None:
        return _NO_MODELS
    decisions = opinions(first, explainer)
    if decisions is None:
        return "No decision flips."
    labels, before, after = _binned(decisions)
    says = "; ".join(f"{label}: {b} before, {a} after" for label, b, a in zip(labels, before, after, strict=True))
    words = Words(
        f"{noun.capitalize()} by how many models decide for the target", says, "models that decide for the target"
    )
    split = [int(((votes > 0) & (votes < decisions.models)).sum()) for votes in (decisions.before, decisions.after)]
    means = [percent(float(votes.mean()) / decisions.models) for votes in (decisions.before, decisions.after)]
    measures = decisions.measures
    return {
        "n": len(decisions.before),
        "models": decisions.models,
        "split": split,
        "chart": mirrored(before, after, labels, words),
        "measures": [
            ("Models that decide for the target, on average", *means),
            (f"{noun.capitalize()} that the models disagree about", *split),
            (
                "Disagreement of two random models, on average (1: an even split)",
                *(f"{value:.3f}" for value in measures["disagreement"]),
            ),
            (
                "Difference of the highest and lowest probability, on average",
                *(f"{value:.3f}" for value in measures["range"]),
            ),
        ],
    }


def _binned(decisions: Opinions) -> tuple[list[str], list[int], list[int]]:
    """Histogram of agreeing models: one bin for each count if there are few, else bands between none and all."""
    m = decisions.models
    if m <= _MAX_COUNTS:
        labels = [f"{k} of {m}" if k in (0, m) else f"{k}" for k in range(m + 1)]
        edges = np.arange(m + 2) - 0.5
    else:
        labels = ["none", "to 20 %", "to 40 %", "to 60 %", "to 80 %", "to nearly all", "all"]
        edges = np.array(
            [-0.5, 0.5, *(math.floor(m * share) + 0.5 for share in (0.2, 0.4, 0.6, 0.8)), m - 0.5, m + 0.5]
        )
    before, after = (np.histogram(votes, edges)[0].tolist() for votes in (decisions.before, decisions.after))
    return labels, before, after
