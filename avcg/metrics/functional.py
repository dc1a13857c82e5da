"""Measures of answers as pure functions of tensors, one value for each answer.

They are given the codes of decoded rows, that is of what people receive. Each column of a link counts by itself,
because people see all of them change. Images have no encoding: if it is None, every pixel is a column.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import torch
from torch import Tensor

from avcg.hypotheses.predictors import Predictors
from avcg.method.reference_set import nearest
from avcg.models.autoencoders import ClassAutoencoders
from avcg.schema.features import Continuous
from avcg.space.encoding import Encoding

# Both bound memory and change no result.
_PAIRS = 2**22  # distances, or rows times hypotheses, held at once
_COLUMNS = 64  # columns sorted at once


def column_changes(encoding: Encoding | None, x_cf: Tensor, x: Tensor) -> Tensor:
    """The size of the change of each raw column: of a number in scaled units, 1 for a category or a filled gap.

    Args:
        encoding: The encoding of columns; None for images. With scaling ``"standard"``, units are standard deviations
            of the training rows.
        x_cf: (N, *event) answers.
        x: (N, *event) factuals.

    Returns:
        (N, columns) sizes, >= 0.

    >>> column_changes(None, torch.tensor([[0.5, 1.0]]), torch.tensor([[0.0, 1.0]]))
    tensor([[0.5000, 0.0000]])
    """
    difference = (x_cf - x).abs().flatten(1)
    if encoding is None:
        return difference
    changes = []
    for feature, block in zip(encoding.schema.features, encoding.slices, strict=True):
        if not isinstance(feature, Continuous):
            changes.append(0.5 * difference[:, block].sum(dim=1))
        elif feature.missing == "indicator":
            filled = difference[:, block.stop - 1] > 0.5
            changes.append(torch.where(filled, 1.0, difference[:, block.start]))
        else:
            changes.append(difference[:, block.start])
    return torch.stack(changes, dim=1)


def l1_distance(encoding: Encoding, x_cf: Tensor, x: Tensor) -> Tensor:
    """(N,) the sum of `column_changes` over columns.

    Args:
        encoding: The encoding of columns.
        x_cf: (N, D) answers.
        x: (N, D) factuals.
    """
    return column_changes(encoding, x_cf, x).sum(dim=1)


def gower(encoding: Encoding | None, x_cf: Tensor, x: Tensor, ranges: Tensor) -> Tensor:
    """Gower's distance: the mean over columns of the change divided by the column's range, each at most 1.

    Args:
        encoding: The encoding of columns; None for images.
        x_cf: (N, *event) answers.
        x: (N, *event) factuals.
        ranges: (columns,) the range of each column, by `column_scales`.

    Returns:
        (N,) distances in [0, 1].

    >>> gower(None, torch.tensor([[1.0, 9.0]]), torch.zeros(1, 2), ranges=torch.tensor([4.0, 3.0]))
    tensor([0.6250])
    """
    return (column_changes(encoding, x_cf, x) / ranges).clamp(max=1.0).mean(dim=1)


def column_scales(encoding: Encoding | None, rows: Tensor, kind: Literal["mad", "range"]) -> Tensor:
    """The spread of the rows in each column, as a divisor of changes; 1 for categories.

    Args:
        encoding: The encoding of columns; None for images.
        rows: (m, *event) training rows. Rows in which a number is missing do not count for it.
        kind: ``"mad"``: the median absolute deviation from the median, or the standard deviation if that is 0;
            ``"range"``: the largest code minus the smallest. A constant number has 1 for both.

    Returns:
        (columns,) spreads, > 0.

    >>> column_scales(None, torch.tensor([[0.0, 5.0], [1.0, 5.0], [4.0, 5.0]]), "mad")
    tensor([1., 1.])
    """
    flat = rows.flatten(1)
    if encoding is None:
        return torch.cat([_spread(columns, kind) for columns in flat.split(_COLUMNS, dim=1)])
    scales = []
    for feature, block in zip(encoding.schema.features, encoding.slices, strict=True):
        if isinstance(feature, Continuous):
            numbers = flat[:, block.start, None]
            gaps = feature.missing == "indicator"
            scales.append(_spread(numbers[flat[:, block.stop - 1] < 0.5] if gaps else numbers, kind))
        else:
            scales.append(flat.new_ones(1))
    return torch.cat(scales)


def _spread(numbers: Tensor, kind: Literal["mad", "range"]) -> Tensor:
    """(n,) the spread of each of n columns of (m, n) numbers, 1 for a constant one; see `column_scales`."""
    if not len(numbers):
        return numbers.new_ones(numbers.shape[1])
    exact = numbers.double()
    scale = span = exact.amax(dim=0) - exact.amin(dim=0)
    if kind == "mad":
        deviation = _median((exact - _median(exact)).abs())
        scale = torch.where(deviation > 0, deviation, exact.std(dim=0, correction=0))
    # The standard deviation of a constant column can differ from 0 by rounding errors, but its range cannot.
    return torch.where(span > 0, scale, 1.0).to(numbers.dtype)


def _median(numbers: Tensor) -> Tensor:
    """(n,) the median of each column of (m, n) numbers; torch.median returns the lower of two middle ones instead."""
    ordered = numbers.sort(dim=0).values
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def columns_changed(encoding: Encoding, x_cf: Tensor, x: Tensor) -> Tensor:
    """(N,) the number of raw columns that differ.

    Args:
        encoding: The encoding of columns.
        x_cf: (N, D) answers.
        x: (N, D) factuals.
    """
    return torch.stack([(x_cf[:, block] != x[:, block]).any(dim=1) for block in encoding.slices]).sum(dim=0)


@torch.no_grad()
def redundancy(
    valid: Callable[[Tensor, Tensor], Tensor], encoding: Encoding | None, x_cf: Tensor, x: Tensor, target: Tensor
) -> Tensor:
    """The share of changed columns that could be changed back, each by itself, without making the answer invalid.

    It means little for answers that are not valid themselves.

    Args:
        valid: Function from (n, *event) answers and (n,) targets to (n,) flags. It is called with some of the rows at
            a time.
        encoding: The encoding of columns; None for images.
        x_cf: (N, *event) answers.
        x: (N, *event) factuals.
        target: (N,) class positions.

    Returns:
        (N,) shares, NaN where nothing changed.
    """
    after, before = x_cf.flatten(1), x.flatten(1)
    blocks = [slice(i, i + 1) for i in range(after.shape[1])] if encoding is None else encoding.slices
    changed, needless = after.new_zeros(len(after)), after.new_zeros(len(after))
    for block in blocks:
        rows = torch.nonzero((after[:, block] != before[:, block]).any(dim=1)).flatten()
        if len(rows):
            trial = after[rows]
            trial[:, block] = before[rows, block]
            changed[rows] += 1.0
            needless[rows] += valid(trial.unflatten(1, x_cf.shape[1:]), target[rows]).to(needless)
    return needless / changed


@torch.no_grad()
def validity(predictors: Predictors, x_cf: Tensor, target: Tensor) -> Tensor:
    """Whether the target is the most probable class of the mean prediction.

    Args:
        predictors: θ_1..θ_S.
        x_cf: (N, *event) answers.
        target: (N,) class positions.

    Returns:
        (N,) 1.0 if it is, else 0.0.
    """
    return (_predictive(predictors, x_cf).argmax(dim=1) == target).to(x_cf.dtype)


@torch.no_grad()
def model_agreement(predictors: Predictors, x_cf: Tensor, target: Tensor) -> Tensor:
    """The weighted share of hypotheses that predict the target: RVR for hypotheses in a Rashomon set, CMV for retrains.

    Args:
        predictors: θ_1..θ_S; for RVR none that a method was trained on.
        x_cf: (N, *event) answers.
        target: (N,) class positions.

    Returns:
        (N,) shares, exactly 1.0 if all predict it.
    """
    # In double precision, because weights such as 1/7 would otherwise not add up to exactly 1.
    weights = predictors.weights.to(x_cf.device).double()
    at_once = max(1, _PAIRS // len(predictors))
    shares = [
        weights @ (predictors.log_probs(answers).argmax(dim=-1) == targets).double() / weights.sum()
        for answers, targets in zip(x_cf.split(at_once), target.split(at_once), strict=True)
    ]
    return torch.cat(shares).to(x_cf.dtype)


@torch.no_grad()
def noisy_execution(predictors: Predictors, x_cf: Tensor, noise: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """The noisy execution error (NE) and the invalidation rate: the effect of errors in carrying out an answer.

    Args:
        predictors: θ_1..θ_S, the same for all methods that are compared.
        x_cf: (N, *event) answers.
        noise: (M, *event) errors, each added to every answer.
        target: (N,) class positions.

    Returns:
        NE, the (N,) mean squared L2 norm of the change in mean probabilities; and the (N,) share of errors under which
        the target is not the most probable class. That share is also high for answers that are not valid themselves.
    """
    exact = _predictive(predictors, x_cf)
    change, invalid = exact.new_zeros(len(exact)), exact.new_zeros(len(exact))
    for error in noise:
        noisy = _predictive(predictors, x_cf + error)
        change += (noisy - exact).square().sum(dim=1)
        invalid += noisy.argmax(dim=1) != target
    return change / len(noise), invalid / len(noise)


def _predictive(predictors: Predictors, x: Tensor) -> Tensor:
    """(N, C) mean probabilities, computed in parts, so that not all (S, N, C) probabilities are held at once."""
    return torch.cat([predictors.predictive(rows) for rows in x.split(max(1, _PAIRS // len(predictors)))])


def input_stability(answers: Tensor, moved: Tensor, x: Tensor, eta: float = 1e-9) -> tuple[Tensor, Tensor]:
    """The input stability R_IC: change of answers under perturbed inputs, relative to their distance from the input.

    The ratio rewards answers that are far away, so the numerator should be compared too.

    Args:
        answers: (N, *event) answers to the inputs.
        moved: (M, N, *event) answers to the inputs perturbed M times, for the same targets.
        x: (N, *event) the inputs.
        eta: Addition to the denominator, which keeps the ratio finite.

    Returns:
        The (N,) ratio R_IC; and its (N,) numerator, the mean squared L2 distance between both answers.

    >>> ratio, numerator = input_stability(torch.zeros(1, 2), torch.ones(3, 1, 2), torch.tensor([[2.0, 0.0]]))
    >>> ratio, numerator
    (tensor([0.5000]), tensor([2.]))
    """
    numerator = (moved - answers).flatten(2).square().sum(dim=-1).mean(dim=0)
    return numerator / ((answers - x).flatten(1).square().sum(dim=1) + eta), numerator


@torch.no_grad()
def im1(autoencoders: ClassAutoencoders, x_cf: Tensor, target: Tensor, original: Tensor, eta: float = 1e-7) -> Tensor:
    """The metric IM1: reconstruction error by the target's autoencoder divided by that by the original class's one.

    Real rows of the target often have values near 1, so they should be compared with.

    Args:
        autoencoders: One autoencoder for each class.
        x_cf: (N, *event) answers.
        target: (N,) class positions of the targets.
        original: (N,) class positions that the factuals have.
        eta: Addition to the denominator, which keeps the ratio finite.

    Returns:
        (N,) ratios, below 1 for an answer that is more like rows of its target.
    """
    errors = autoencoders.errors(x_cf)
    return errors.gather(0, target[None])[0] / (errors.gather(0, original[None])[0] + eta)


@torch.no_grad()
def implausibility(x_cf: Tensor, rows: Tensor) -> Tensor:
    """(N,) the mean Euclidean distance, in codes, to all training rows of the target; NaN if there are none.

    It is least in the middle of these rows, so it favours prototypes over typical rows; see also `distance_to_rows`.

    Args:
        x_cf: (N, *event) answers.
        rows: (m, *event) training rows of the target.

    >>> implausibility(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([3.])
    """
    at_once = max(1, _PAIRS // max(1, len(rows)))
    return torch.cat([torch.cdist(part, rows.flatten(1)).mean(dim=1) for part in x_cf.flatten(1).split(at_once)])


def lof_inlier(x_cf: Tensor, target: Tensor, rows: Sequence[Tensor], n_neighbors: int = 20, most: int = 2000) -> Tensor:
    """Whether an answer is an inlier among the rows of its target, by the local outlier factor.

    Args:
        x_cf: (N, *event) answers.
        target: (N,) class positions.
        rows: (m, *event) training rows of each class.
        n_neighbors: Number of neighbours of the local outlier factor.
        most: Largest number of rows of each class that are used, from the first on.

    Returns:
        (N,) 1.0 for an inlier, else 0.0; NaN if the target has no more than ``n_neighbors`` rows.
    """
    from sklearn.neighbors import LocalOutlierFactor

    result = x_cf.new_full((len(x_cf),), torch.nan)
    for label in target.unique().tolist():
        reference, members = rows[label][:most].flatten(1).cpu().numpy(), target == label
        if len(reference) > n_neighbors:
            factor = LocalOutlierFactor(n_neighbors=n_neighbors, novelty=True).fit(reference)
            prediction = factor.predict(x_cf[members].detach().flatten(1).cpu().numpy())
            result[members] = torch.as_tensor(prediction == 1).to(result)
    return result


def distance_to_rows(x_cf: Tensor, rows: Tensor, k: int = 5) -> Tensor:
    """(N,) the mean Euclidean distance, in codes, to the k nearest rows; for training rows of the target this is yNN.

    Args:
        x_cf: (N, *event) answers.
        rows: (m, *event) rows to compare with.
        k: Number of nearest rows.

    >>> distance_to_rows(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0], [9.0, 9.0]]), k=2)
    tensor([3.])
    """
    if not len(rows):
        return x_cf.new_full((len(x_cf),), torch.nan)
    near = nearest(x_cf.flatten(1), rows.flatten(1), k)
    return (x_cf.flatten(1)[:, None] - rows.flatten(1)[near]).norm(dim=-1).mean(dim=1)


def pairwise_distance(answers: Tensor) -> Tensor:
    """(N,) the mean L2 distance between the K answers of each row.

    Args:
        answers: (K, N, *event) answers, K >= 2.
    """
    flat = answers.flatten(2)
    first, second = torch.triu_indices(len(flat), len(flat), offset=1)
    return (flat[first] - flat[second]).norm(dim=-1).mean(dim=0)


def nearest_other(answers: Tensor, n: int) -> Tensor:
    """(N,) the L2 distance of each answer to the nearest other answer to its row; NaN if rows have one answer.

    Args:
        answers: (N, *event) answers, the n answers to a row one after the other.
        n: Number of answers to each row.

    >>> nearest_other(torch.tensor([[0.0], [1.0], [3.0]]), n=3)
    tensor([1., 1., 2.])
    """
    rows = answers.flatten(1).unflatten(0, (-1, n))
    lowest = (torch.cdist(rows, rows) + torch.diag(torch.full((n,), torch.inf))).amin(dim=-1).flatten()
    return torch.where(lowest.isinf(), torch.nan, lowest)
