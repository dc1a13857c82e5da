"""Measures of answers as plain functions of tensors, one value for each answer.

They look at codes of decoded rows, so at what people receive. Columns of a link each count: a person sees both change.
Pictures have no encoding: where it is None, every pixel is a column of its own.
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

# So many distances, or so many rows times hypotheses, are held at once.
_PAIRS = 2**22
# So many columns are sorted at once.
_COLUMNS = 64


def column_changes(encoding: Encoding | None, x_cf: Tensor, x: Tensor) -> Tensor:
    """How far each raw column moved: a number in its scaled units, a changed category or a filled gap 1.

    Args:
        encoding: With scaling ``"standard"``, units are standard deviations of the training rows.
        x_cf: (N, *event).
        x: (N, *event).

    Returns:
        (N, columns).

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
    """The sum over raw columns of what changed: a number in its scaled units, a category or a filled gap as 1.

    Args:
        encoding: With scaling ``"standard"``, units are standard deviations of the training rows.
        x_cf: (N, D).
        x: (N, D).

    Returns:
        (N,).
    """
    return column_changes(encoding, x_cf, x).sum(dim=1)


def gower(encoding: Encoding | None, x_cf: Tensor, x: Tensor, ranges: Tensor) -> Tensor:
    """Gower's distance: the mean over columns of the change over the column's range, each at most 1.

    Args:
        encoding: None for pictures.
        x_cf: (N, *event).
        x: (N, *event).
        ranges: (columns,) as `column_scales` gives them.

    Returns:
        (N,) from 0 to 1.

    >>> gower(None, torch.tensor([[1.0, 9.0]]), torch.zeros(1, 2), ranges=torch.tensor([4.0, 3.0]))
    tensor([0.6250])
    """
    return (column_changes(encoding, x_cf, x) / ranges).clamp(max=1.0).mean(dim=1)


def column_scales(encoding: Encoding | None, rows: Tensor, kind: Literal["mad", "range"]) -> Tensor:
    """What to divide the changes of columns by: how far the rows spread in each; 1 for categories.

    Args:
        encoding: None for pictures.
        rows: (m, *event) training rows. Those with a gap in a number do not count for it.
        kind: ``"mad"``: the median absolute deviation from the median, or the standard deviation where that is 0;
            ``"range"``: the largest code less the smallest. A constant number has 1 in either.

    Returns:
        (columns,), all above 0.

    >>> column_scales(None, torch.tensor([[0.0, 5.0], [1.0, 5.0], [4.0, 5.0]]), "mad")
    tensor([1., 1.])
    """
    flat = rows.flatten(1)
    if encoding is None:
        return torch.cat([_spread(some, kind) for some in flat.split(_COLUMNS, dim=1)])
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
    """(m, n) to (n,), 1 where there is none."""
    if not len(numbers):
        return numbers.new_ones(numbers.shape[1])
    exact = numbers.double()
    scale = span = exact.amax(dim=0) - exact.amin(dim=0)
    if kind == "mad":
        deviation = _median((exact - _median(exact)).abs())
        scale = torch.where(deviation > 0, deviation, exact.std(dim=0, correction=0))
    # Rounding in the mean can hide from the standard deviation that a column is constant.
    return torch.where(span > 0, scale, 1.0).to(numbers.dtype)


def _median(numbers: Tensor) -> Tensor:
    """(m, n) to (n,), the middle of the two middle ones where m is even: torch.median takes the lower one."""
    ordered = numbers.sort(dim=0).values
    return (ordered[(len(ordered) - 1) // 2] + ordered[len(ordered) // 2]) / 2


def columns_changed(encoding: Encoding, x_cf: Tensor, x: Tensor) -> Tensor:
    """(N,) how many raw columns differ."""
    return torch.stack([(x_cf[:, block] != x[:, block]).any(dim=1) for block in encoding.slices]).sum(dim=0)


@torch.no_grad()
def redundancy(
    valid: Callable[[Tensor, Tensor], Tensor], encoding: Encoding | None, x_cf: Tensor, x: Tensor, target: Tensor
) -> Tensor:
    """Of the columns changed, the share that could be put back, each on its own, and leave a valid answer.

    It says little of answers that are not valid to begin with.

    Args:
        valid: (n, *event) and (n,) targets to (n,) flags. It is asked about some of the rows at a time.
        encoding: None for pictures.
        x_cf: (N, *event).
        x: (N, *event).
        target: (N,) class positions.

    Returns:
        (N,), NaN where nothing changed.
    """
    after, before = x_cf.flatten(1), x.flatten(1)
    blocks = [slice(i, i + 1) for i in range(after.shape[1])] if encoding is None else encoding.slices
    changed, needless = after.new_zeros(len(after)), after.new_zeros(len(after))
    for block in blocks:
        mine = torch.nonzero((after[:, block] != before[:, block]).any(dim=1)).flatten()
        if len(mine):
            trial = after[mine]
            trial[:, block] = before[mine, block]
            changed[mine] += 1.0
            needless[mine] += valid(trial.unflatten(1, x_cf.shape[1:]), target[mine]).to(needless)
    return needless / changed


@torch.no_grad()
def validity(predictors: Predictors, x_cf: Tensor, target: Tensor) -> Tensor:
    """Whether the mean prediction favours the target.

    Args:
        predictors: θ_1..θ_S.
        x_cf: (N, *event).
        target: (N,) class positions.

    Returns:
        (N,) 1.0 where it does, else 0.0.
    """
    return (_predictive(predictors, x_cf).argmax(dim=1) == target).to(x_cf.dtype)


@torch.no_grad()
def model_agreement(predictors: Predictors, x_cf: Tensor, target: Tensor) -> Tensor:
    """The weighted share of hypotheses that favour the target: RVR on a bank of masks, CMV on retrained models.

    Args:
        predictors: θ_1..θ_S; for RVR none that a generator was trained on.
        x_cf: (N, *event).
        target: (N,) class positions.

    Returns:
        (N,) exactly 1.0 where all do.
    """
    # In double precision, or weights such as 1/7 would add up to a little less or more than 1.
    weights = predictors.weights.to(x_cf.device).double()
    at_once = max(1, _PAIRS // len(predictors))
    shares = [
        weights @ (predictors.log_probs(some).argmax(dim=-1) == wanted).double() / weights.sum()
        for some, wanted in zip(x_cf.split(at_once), target.split(at_once), strict=True)
    ]
    return torch.cat(shares).to(x_cf.dtype)


@torch.no_grad()
def noisy_execution(predictors: Predictors, x_cf: Tensor, noise: Tensor, target: Tensor) -> tuple[Tensor, Tensor]:
    """How the mean prediction reacts when an answer is followed with errors.

    Args:
        predictors: θ_1..θ_S, the same for all measures of a comparison.
        x_cf: (N, *event).
        noise: (M, *event) errors, each added to every answer.
        target: (N,) class positions.

    Returns:
        NE, the mean squared L2 norm of the change in probabilities, (N,); and the invalidation rate, the share of
        errors under which the target is not favoured, (N,). The latter is high too where it was not favoured before.
    """
    calm = _predictive(predictors, x_cf)
    moved, lost = calm.new_zeros(len(calm)), calm.new_zeros(len(calm))
    for error in noise:
        shaken = _predictive(predictors, x_cf + error)
        moved += (shaken - calm).square().sum(dim=1)
        lost += shaken.argmax(dim=1) != target
    return moved / len(noise), lost / len(noise)


def _predictive(predictors: Predictors, x: Tensor) -> Tensor:
    """(N, C), without holding the probabilities of all rows under all hypotheses."""
    return torch.cat([predictors.predictive(some) for some in x.split(max(1, _PAIRS // len(predictors)))])


def input_stability(answers: Tensor, moved: Tensor, x: Tensor, eta: float = 1e-9) -> tuple[Tensor, Tensor]:
    """How far answers move with their inputs, against how far they lie from them.

    The ratio R_IC rewards answers that are far away: look at the numerator too.

    Args:
        answers: (N, *event) to the inputs as they are.
        moved: (M, N, *event) to the inputs perturbed M times, for the same targets.
        x: (N, *event) the inputs.
        eta: Keeps the ratio finite.

    Returns:
        R_IC, (N,); and its numerator, the mean squared L2 distance between both answers, (N,).

    >>> ratio, numerator = input_stability(torch.zeros(1, 2), torch.ones(3, 1, 2), torch.tensor([[2.0, 0.0]]))
    >>> ratio, numerator
    (tensor([0.5000]), tensor([2.]))
    """
    numerator = (moved - answers).flatten(2).square().sum(dim=-1).mean(dim=0)
    return numerator / ((answers - x).flatten(1).square().sum(dim=1) + eta), numerator


@torch.no_grad()
def im1(autoencoders: ClassAutoencoders, x_cf: Tensor, target: Tensor, original: Tensor, eta: float = 1e-7) -> Tensor:
    """The reconstruction error under the target's autoencoder over that under the original class's: IM1.

    Real rows of the target often come near 1: compare with theirs.

    Args:
        autoencoders: One for each class.
        x_cf: (N, *event).
        target: (N,) class positions.
        original: (N,) positions of the classes the answers lead away from.
        eta: Keeps the ratio finite.

    Returns:
        (N,), below 1 where an answer looks more like its target.
    """
    errors = autoencoders.errors(x_cf)
    return errors.gather(0, target[None])[0] / (errors.gather(0, original[None])[0] + eta)


@torch.no_grad()
def implausibility(x_cf: Tensor, rows: Tensor) -> Tensor:
    """(N,) the mean Euclidean distance, in codes, to all the rows, those of the target; NaN where there are none.

    It is least in the middle of the rows, so it favours prototypes over typical rows: see `distance_to_rows` too.

    Args:
        x_cf: (N, *event).
        rows: (m, *event).

    >>> implausibility(torch.zeros(1, 2), torch.tensor([[3.0, 4.0], [0.0, 1.0]]))
    tensor([3.])
    """
    at_once = max(1, _PAIRS // max(1, len(rows)))
    return torch.cat([torch.cdist(some, rows.flatten(1)).mean(dim=1) for some in x_cf.flatten(1).split(at_once)])


def lof_inlier(x_cf: Tensor, target: Tensor, rows: Sequence[Tensor], n_neighbors: int = 20, most: int = 2000) -> Tensor:
    """Whether the local outlier factor calls an answer an inlier among the rows of its target.

    Args:
        x_cf: (N, *event).
        target: (N,) class positions.
        rows: For each class, (m, *event).
        n_neighbors: Of the local outlier factor.
        most: So many rows of each class are looked at, the first.

    Returns:
        (N,) 1.0 for an inlier, else 0.0; NaN where the target has no more than ``n_neighbors`` rows.
    """
    from sklearn.neighbors import LocalOutlierFactor

    result = x_cf.new_full((len(x_cf),), torch.nan)
    for label in target.unique().tolist():
        known, mine = rows[label][:most].flatten(1).cpu().numpy(), target == label
        if len(known) > n_neighbors:
            factor = LocalOutlierFactor(n_neighbors=n_neighbors, novelty=True).fit(known)
            found = factor.predict(x_cf[mine].detach().flatten(1).cpu().numpy())
            result[mine] = torch.as_tensor(found == 1).to(result)
    return result


def distance_to_rows(x_cf: Tensor, rows: Tensor, k: int = 5) -> Tensor:
    """(N,) the mean Euclidean distance, in codes, to the k nearest rows: with rows of the target's class, yNN.

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
        answers: (K, N, *event), K >= 2.
    """
    flat = answers.flatten(2)
    first, second = torch.triu_indices(len(flat), len(flat), offset=1)
    return (flat[first] - flat[second]).norm(dim=-1).mean(dim=0)


def nearest_other(answers: Tensor, n: int) -> Tensor:
    """(N,) the L2 distance of each answer to the nearest other answer of its row; NaN where a row has one answer.

    Args:
        answers: (N, *event), the n answers of a row one after the other.
        n: Answers of each row.

    >>> nearest_other(torch.tensor([[0.0], [1.0], [3.0]]), n=3)
    tensor([1., 1., 2.])
    """
    rows = answers.flatten(1).unflatten(0, (-1, n))
    nearest_one = (torch.cdist(rows, rows) + torch.diag(torch.full((n,), torch.inf))).amin(dim=-1).flatten()
    return torch.where(nearest_one.isinf(), torch.nan, nearest_one)
