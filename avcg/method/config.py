"""Every choice that changes answers after training: how candidates are searched, calibrated and distilled.

Part of `avcg.Recipe` and stored with an explainer. Standard library alone, so that the light scorer can read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from avcg.errors import SettingError, check_int


@dataclass(frozen=True)
class SearchConfig:
    """What is tried beyond one pass of the generator, and how candidates are compared.

    Attributes:
        margin_steps: Log-odds added to the margin, one after the other, until the judges accept an answer. Small steps
            stay closer than other latents do.
        retry_margins: Log-odds added to the margin where every step was refused, each with ``retry_latents`` latents;
            those after the first also widen the choice where several answers are wanted.
        retry_latents: Latents for each of the retry margins.
        first_neighbours: Nearest reference rows looked at beside the margin steps.
        retry_neighbours: Nearest reference rows looked at where everything else was refused.
        latents_per_answer: Latents and reference rows for each of several answers.
        lock_depth: Changes of the first answer that are locked one after the other to find a different one.
        margin_slack: Log-odds beyond a requested probability, since rounding takes some.
        rejection_penalty: Cost of a rejected candidate, above any distance; more the fewer judges accept it.
        diversity_penalty: Cost of a candidate that hardly differs from an answer already chosen for its row.
        duplicate_penalty: Cost of a candidate that equals an answer already chosen for its row.
        cost_quantum: Costs are rounded to multiples of this before they are compared, and of equal costs the candidate
            proposed first wins, so that the last digits of a float32 product decide nothing.
        code_quantum: Numbers that the generator proposes inside their limits are rounded to multiples of this, in
            units of their codes (a standard deviation), for the same reason.
        diversity_group: Answers of a row that are all kept apart from each other; more answers are chosen in groups.
        confidence: Confidence of the lower bounds in certificates.
        refined_margin: Log-odds beyond the decision that refining leaves where nothing was calibrated, by the judges'
            mean less ``spread`` standard deviations.
        spread: Standard deviations over judges for that.
        refine_margins: Log-odds taken off the margin, one after the other, when refining.
        refine_locks: Changes of the first answer that refining tries to do without.
        refine_rounds: Rounds of taking changes back, at most.
    """

    margin_steps: tuple[float, ...] = (0.25, 0.5, 0.75, 1.0, 1.5, 2.0, 3.0)
    retry_margins: tuple[float, ...] = (0.0, 0.7, 1.5, 3.0)
    retry_latents: int = 3
    first_neighbours: int = 5
    retry_neighbours: int = 20
    latents_per_answer: int = 2
    lock_depth: int = 2
    margin_slack: float = 0.1
    rejection_penalty: float = 1e6
    diversity_penalty: float = 3.0
    duplicate_penalty: float = 1e9
    cost_quantum: float = 2.0**-10
    code_quantum: float = 2.0**-7
    diversity_group: int = 16
    confidence: float = 0.95
    refined_margin: float = 0.5
    spread: float = 2.0
    refine_margins: tuple[float, ...] = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0)
    refine_locks: int = 3
    refine_rounds: int = 60

    def __post_init__(self) -> None:
        for name in ("retry_latents", "first_neighbours", "retry_neighbours", "latents_per_answer", "diversity_group"):
            check_int(getattr(self, name), f"'{name}' of SearchConfig", 1)
        for name in ("lock_depth", "refine_locks", "refine_rounds"):
            check_int(getattr(self, name), f"'{name}' of SearchConfig", 0)
        for name in ("margin_slack", "diversity_penalty", "spread"):
            _check(self, name, getattr(self, name) >= 0, "a number >= 0")
        for name in ("rejection_penalty", "duplicate_penalty", "cost_quantum", "code_quantum"):
            _check(self, name, getattr(self, name) > 0, "a number > 0")
        for name in ("margin_steps", "retry_margins", "refine_margins"):
            _check(self, name, len(getattr(self, name)) > 0, "at least one number")
        _check(self, "confidence", 0 < self.confidence < 1, "in (0, 1)")


@dataclass(frozen=True)
class CalibrationConfig:
    """How the margin behind a promise is chosen, on rows and hypotheses that were not trained on.

    Attributes:
        held_share: Share of the rows that is held back from training.
        min_rows: Rows held back at least, but no more than a third.
        max_codes: Held-back rows times codes, at most.
        n_margins: Margins tried between the recipe's lowest and highest.
        standard_errors: Standard errors over hypotheses by which a promise must be kept clear.
        refine_rows: Held-back rows on which refining is calibrated.
        refine_levels: Ascending log-odds that refining may leave, of which the least that keeps the promise is taken.
        watched_rows: Held-back rows looked at after each epoch, for diagnostics.
    """

    held_share: float = 0.15
    min_rows: int = 60
    max_codes: int = 100_000
    n_margins: int = 25
    standard_errors: float = 2.0
    refine_rows: int = 300
    refine_levels: tuple[float, ...] = tuple(0.5 * i for i in range(-6, 11))
    watched_rows: int = 256

    def __post_init__(self) -> None:
        for name in ("min_rows", "max_codes", "n_margins", "refine_rows", "watched_rows"):
            check_int(getattr(self, name), f"'{name}' of CalibrationConfig", 1)
        _check(self, "held_share", 0 < self.held_share < 1, "in (0, 1)")
        _check(self, "standard_errors", self.standard_errors >= 0, "a number >= 0")
        _check(self, "refine_levels", len(self.refine_levels) > 0, "at least one number")


@dataclass(frozen=True)
class DistillationConfig:
    """How students learn from models that can only be asked.

    Attributes:
        hidden: Hidden units of a student.
        rounds: Rounds of training the generator; after each, the models are asked about its answers.
        attempts: Answers about which they are asked after a round.
        first_epochs: Epochs of the students' first training.
        first_learning_rate: Highest learning rate of the first training.
        later_epochs: Epochs of each later training.
        later_learning_rate: Highest learning rate of later trainings.
        batch_size: Rows a step.
        max_rows: Training rows that the models are asked about, at most.
        crossed_rows: Rows crossed with each other that the models are asked about, at least.
        label_smoothing: No student is taught to be surer than this: a forest's 0 has no log-odds.
        spread: Standard deviations over students that an answer must stay clear by when changes are taken back.
    """

    hidden: tuple[int, ...] = (64, 64)
    rounds: int = 4
    attempts: int = 4000
    first_epochs: int = 25
    first_learning_rate: float = 4e-3
    later_epochs: int = 10
    later_learning_rate: float = 2e-3
    batch_size: int = 512
    max_rows: int = 20_000
    crossed_rows: int = 4000
    label_smoothing: float = 1e-3
    spread: float = 2.0

    def __post_init__(self) -> None:
        for name in ("attempts", "first_epochs", "later_epochs", "batch_size", "max_rows"):
            check_int(getattr(self, name), f"'{name}' of DistillationConfig", 1)
        check_int(self.rounds, "'rounds' of DistillationConfig", 2)
        check_int(self.crossed_rows, "'crossed_rows' of DistillationConfig", 0)
        _check(self, "label_smoothing", 0 < self.label_smoothing < 0.5, "in (0, 0.5)")
        _check(self, "spread", self.spread >= 0, "a number >= 0")


def _check(config: object, name: str, holds: bool, expected: str) -> None:
    if not holds:
        value = getattr(config, name)
        raise SettingError(f"The '{name}' of {type(config).__name__} must be {expected}. Got {value!r} instead.")
