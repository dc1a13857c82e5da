"""Measures of answers as plain functions of tensors, one value for each answer.

They look at codes of decoded rows, so at what people receive. Columns of a link each count: a person sees both change.
"""

from __future__ import annotations

import torch
from torch import Tensor

from avcg.encoding import Encoding
from avcg.features import Continuous
from avcg.plausibility import nearest


def l1_distance(encoding: Encoding, x_cf: Tensor, x: Tensor) -> Tensor:
    """The sum over raw columns of what changed: a number in its scaled units, a category or a filled gap as 1.

    Args:
        encoding: With scaling ``"standard"``, units are standard deviations of the training rows.
        x_cf: (N, D).
        x: (N, D).

    Returns:
        (N,).
    """
    difference, total = (x_cf - x).abs(), torch.zeros(len(x))
    for feature, block in zip(encoding.schema.features, encoding.slices, strict=True):
        if not isinstance(feature, Continuous):
            total += 0.5 * difference[:, block].sum(dim=1)
        elif feature.missing == "indicator":
            filled = difference[:, block.stop - 1] > 0.5
            total += torch.where(filled, 1.0, difference[:, block.start])
        else:
            total += difference[:, block.start]
    return total


def columns_changed(encoding: Encoding, x_cf: Tensor, x: Tensor) -> Tensor:
    """(N,) how many raw columns differ."""
    return torch.stack([(x_cf[:, block] != x[:, block]).any(dim=1) for block in encoding.slices]).sum(dim=0)


def distance_to_rows(x_cf: Tensor, rows: Tensor, k: int = 5) -> Tensor:
    """(N,) the mean Euclidean distance, in codes, to the k nearest rows: with rows of the target's class, yNN.

    >>> distance_to_rows(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0], [9.0, 9.0]]), k=2)
    tensor([3.])
    """
    near = nearest(x_cf.flatten(1), rows.flatten(1), k)
    return (x_cf.flatten(1)[:, None] - rows.flatten(1)[near]).norm(dim=-1).mean(dim=1)


def pairwise_distance(answers: Tensor) -> Tensor:
    """(N,) the mean L2 distance between the K answers of each row.

    Args:
        answers: (K, N, *event), K >= 2.
    """
    flat = answers.flatten(2)
    first, second = torch.triu_indices(len(flat), len(flat), offset=1)
    return (flat[first] - flat[second]).norm(dim=-1).mean(dim=0)


def personalisation(answers: Tensor, x: Tensor, target: Tensor) -> float:
    """The spread of answers over the spread of the rows they answer, among rows with one target: 0 for one profile.

    Args:
        answers: (B, *event).
        x: (B, *event).
        target: (B,).
    """
    shares, total = 0.0, 0
    for label in target.unique().tolist():
        mine = target == label
        if int(mine.sum()) > 1:
            spread = answers[mine].flatten(1).std(dim=0).sum() / x[mine].flatten(1).std(dim=0).sum().clamp(min=1e-9)
            shares, total = shares + float(spread) * int(mine.sum()), total + int(mine.sum())
    return shares / total if total else 1.0
