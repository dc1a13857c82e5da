"""Choices that change answers after training: how candidates are searched, calibrated, watched and distilled.

Each is a part of `avcg.Recipe` and is stored with an explainer. This module needs the standard library alone, so that
the light scorer can read it.
"""

from __future__ import annotations

from dataclasses import dataclass

from avcg.errors import check_int, check_setting


@dataclass(frozen=True)
class SearchConfig:
    """How the search looks for answers beyond one pass of the generator, and how it compares candidates.

    Attributes:
        margin_steps: Log-odds added to the margin, one step after the other, until the judges accept an answer. Small
            steps stay closer to the row than other latents do.
        retry_margins: Log-odds added to the margin where every step was rejected, each tried with ``retry_latents``
            latents. Those after the first are also tried where several answers are wanted.
        retry_latents: Number of latents for each retry margin.
        first_neighbours: Number of nearest reference rows tried beside the margin steps.
        retry_neighbours: Number of nearest reference rows tried where everything else was rejected.
        latents_per_answer: Number of latents, and of reference rows, tried for each of several answers.
        lock_depth: Number of changes that are locked one after the other, from each change of the first answer on, to
            find a different answer.
        margin_slack: Log-odds beyond a requested probability, because rounding an answer takes some away.
        rejection_penalty: Cost of a rejected candidate. It must exceed any distance; it grows as fewer judges accept.
        diversity_penalty: Cost of a candidate that hardly differs from an answer already chosen for its row.
        duplicate_penalty: Cost of a candidate that equals an answer already chosen for its row.
        cost_quantum: Costs are rounded to multiples of this before they are compared. Of equal costs the candidate
            proposed first wins, so that the last digits of a float32 product decide nothing.
        code_quantum: Numbers that the generator proposes inside their limits are rounded to multiples of this, in
            codes (standard deviations), for the same reason.
        most_log_odds: Log-odds of a model at which they are cut off, since beyond them they say no more: a forest's
            probability of 1 is the share of a few hundred trees.
        tolerance: Distances, and shortfalls of a share of judges, up to this count as zero.
        diversity_group: Largest number of answers to a row that are all compared with each other; more are chosen in
            groups of this size.
        confidence: Confidence of the lower bounds in certificates, in (0, 1).
        refined_margin: Log-odds beyond the decision that an answer of a method without calibration keeps when it is
            brought closer.
        smaller_margins: Log-odds taken off the margin, for answers to start from.
        start_locks: Number of changes of the first answer that answers to start from do without.
        steps: Codes (standard deviations) by which numbers are moved in each round of standard effort.
        thorough_steps: The same for the rounds that thorough effort adds.
        rescue_steps: The same for a row without an accepted answer, over and over again.
        rescue_rounds: Largest number of rounds for such a row, with fast, standard and thorough effort.
        shaved: Shares of the change of all numbers that are taken back in the end.
        most_points: Largest number of points that such a row may become of which all are tried.
        n_units: Number of units of change tried in each round after the first, those that gained most for their price.
        price_range: Lowest and highest price of a log-odd for which changes are combined.
        price_halvings: Number of times that this range is halved, on a logarithmic scale, to find the price.
        slacks: Log-odds beyond the margin that combined changes should gain, since what each gains does not add up.
        n_typical: Number of reference rows, the nearest to the first answer, from which typicality is measured.
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
    most_log_odds: float = 10.0
    tolerance: float = 1e-6
    diversity_group: int = 16
    confidence: float = 0.95
    refined_margin: float = 0.5
    smaller_margins: tuple[float, ...] = (0.5, 1.0, 2.0)
    start_locks: int = 2
    steps: tuple[float, ...] = (0.5, 0.25, 0.125)
    thorough_steps: tuple[float, ...] = (1.0, 0.5, 0.25, 0.125, 0.0625)
    rescue_steps: tuple[float, ...] = (1.0, 0.5, 0.25)
    rescue_rounds: tuple[int, int, int] = (4, 12, 36)
    shaved: tuple[float, ...] = (0.16, 0.08, 0.04, 0.02, 0.01)
    most_points: int = 4096
    n_units: int = 8
    price_range: tuple[float, float] = (2.0**-12, 2.0**10)
    price_halvings: int = 16
    slacks: tuple[float, ...] = (0.0, 0.1, 0.25, 0.5, 1.0, 2.0)
    n_typical: int = 24

    def __post_init__(self) -> None:
        for name in ("retry_latents", "first_neighbours", "retry_neighbours", "latents_per_answer", "diversity_group"):
            check_int(getattr(self, name), f"'{name}' of SearchConfig", 1)
        for name in ("most_points", "n_units", "price_halvings", "n_typical"):
            check_int(getattr(self, name), f"'{name}' of SearchConfig", 1)
        for name in ("lock_depth", "start_locks"):
            check_int(getattr(self, name), f"'{name}' of SearchConfig", 0)
        for name in ("margin_slack", "diversity_penalty", "tolerance"):
            check_setting(self, name, getattr(self, name) >= 0, "a number >= 0")
        for name in ("rejection_penalty", "duplicate_penalty", "cost_quantum", "code_quantum", "most_log_odds"):
            check_setting(self, name, getattr(self, name) > 0, "a number > 0")
        check_setting(self, "price_range", 0 < self.price_range[0] < self.price_range[1], "(low, high), both > 0")
        for name in ("margin_steps", "retry_margins", "slacks", "rescue_steps"):
            check_setting(self, name, len(getattr(self, name)) > 0, "at least one number")
        check_setting(self, "confidence", 0 < self.confidence < 1, "in (0, 1)")


@dataclass(frozen=True)
class ReferenceConfig:
    """Which training rows answers stay near to and fall back on.

    Attributes:
        max_rows: Largest number of reference rows of each class.
        min_prob: Probability of its class that every judge must give a reference row, in [0, 1].
        min_rows: Smallest number of reference rows of each class. Where fewer reach ``min_prob``, those that come
            closest are taken.
        n_neighbours: Number of nearest reference rows from which plausibility is measured.
    """

    max_rows: int = 1500
    min_prob: float = 0.6
    min_rows: int = 5
    n_neighbours: int = 5

    def __post_init__(self) -> None:
        for name in ("max_rows", "min_rows", "n_neighbours"):
            check_int(getattr(self, name), f"'{name}' of ReferenceConfig", 1)
        check_setting(self, "min_prob", 0 <= self.min_prob <= 1, "in [0, 1]")


@dataclass(frozen=True)
class CalibrationConfig:
    """How the margin behind a promise is chosen, on rows and hypotheses that were not trained on.

    Attributes:
        held_share: Share of the rows that is held back from training, in (0, 1).
        min_rows: Smallest number of rows held back, unless that exceeds ``max_share``.
        min_class_rows: Smallest number of rows held back of those that the deployed model decides for each class, with
            the same exception. 19 rows are the least that can carry a survival of 0.95.
        max_share: Share of the rows that ``min_rows`` and ``min_class_rows`` may take at most, in (0, 1).
        max_codes: Largest number of held-back rows times codes.
        n_margins: Number of margins tried between the recipe's lowest and highest.
        refine_rows: Largest number of held-back rows of each target class by which refining is calibrated.
        n_refined: Number of margins tried with refining.
    """

    held_share: float = 0.15
    min_rows: int = 60
    min_class_rows: int = 30
    max_share: float = 1 / 3
    max_codes: int = 100_000
    n_margins: int = 25
    refine_rows: int = 120
    n_refined: int = 13

    def __post_init__(self) -> None:
        for name in ("min_rows", "min_class_rows", "max_codes", "n_margins", "refine_rows", "n_refined"):
            check_int(getattr(self, name), f"'{name}' of CalibrationConfig", 1)
        for name in ("held_share", "max_share"):
            check_setting(self, name, 0 < getattr(self, name) < 1, "in (0, 1)")

    def n_held(self, n_rows: int, n_codes: int) -> int:
        """Number of rows to hold back.

        Args:
            n_rows: Number of rows that may change something.
            n_codes: Number of codes of a row.
        """
        least = min(self.min_rows, self._most_of(n_rows))
        return min(max(round(self.held_share * n_rows), least, 1), self._affordable(n_codes))

    def n_held_of_class(self, n_rows: int, n_codes: int) -> int:
        """Smallest number of rows to hold back of those that are decided for one class.

        Args:
            n_rows: Number of these rows that may change something.
            n_codes: Number of codes of a row.
        """
        return min(self.min_class_rows, self._most_of(n_rows), self._affordable(n_codes))

    def _most_of(self, n_rows: int) -> int:
        return int(self.max_share * n_rows + 1e-9)

    def _affordable(self, n_codes: int) -> int:
        return max(self.max_codes // n_codes, self.min_rows)


@dataclass(frozen=True)
class DiagnosticsConfig:
    """What is measured after each epoch, and when a warning is given.

    Attributes:
        rows: Number of held-back rows that are answered after each epoch.
        margin: Margin at which they are answered, in log-odds.
        active_variance: Variance over rows from which a latent unit's mean counts as active.
        collapsed: Personalisation below which a warning says that everyone is sent to nearly one profile, in [0, 1].
    """

    rows: int = 256
    margin: float = 1.0
    active_variance: float = 0.01
    collapsed: float = 0.1

    def __post_init__(self) -> None:
        check_int(self.rows, "'rows' of DiagnosticsConfig", 1)
        check_setting(self, "active_variance", self.active_variance > 0, "a number > 0")
        check_setting(self, "collapsed", 0 <= self.collapsed <= 1, "in [0, 1]")


@dataclass(frozen=True)
class DistillationConfig:
    """How students learn from models that can only be asked.

    Attributes:
        hidden: Hidden units of a student.
        rounds: Number of rounds in which the generator is trained. After each, the models are asked about its answers.
        first_share: Share of the generator's steps that the first round takes, in (0, 1); the others share the rest.
        attempts: Number of answers about which the models are asked after a round.
        first_epochs: Epochs of the students' first training.
        first_learning_rate: Highest learning rate of the first training.
        later_epochs: Epochs of each later training.
        later_learning_rate: Highest learning rate of later trainings.
        batch_size: Rows of a training step.
        max_rows: Largest number of training rows that the models are asked about.
        held_share: Share of these rows that students are not taught, to measure how well they stand in, in (0, 1).
        crossed_rows: Smallest number of rows crossed with each other that the models are asked about.
        replay_share: Earlier rows that a later training repeats at least, as a share of ``max_rows``, in [0, 1].
        encoding_steps: Number of steps by which a student reads each number; see `PiecewiseLinearEncoding`.
        label_smoothing: Lowest probability that a student is taught for any class, in (0, 0.5): a forest's 0 has no
            log-odds.
    """

    hidden: tuple[int, ...] = (64, 64)
    rounds: int = 4
    first_share: float = 0.5
    attempts: int = 4000
    first_epochs: int = 12
    first_learning_rate: float = 4e-3
    later_epochs: int = 6
    later_learning_rate: float = 2e-3
    batch_size: int = 512
    max_rows: int = 20_000
    held_share: float = 0.1
    crossed_rows: int = 4000
    replay_share: float = 0.25
    encoding_steps: int = 16
    label_smoothing: float = 1e-3

    def __post_init__(self) -> None:
        for name in ("attempts", "first_epochs", "later_epochs", "batch_size", "max_rows", "encoding_steps"):
            check_int(getattr(self, name), f"'{name}' of DistillationConfig", 1)
        check_int(self.rounds, "'rounds' of DistillationConfig", 2)
        check_int(self.crossed_rows, "'crossed_rows' of DistillationConfig", 0)
        for name in ("first_share", "held_share"):
            check_setting(self, name, 0 < getattr(self, name) < 1, "in (0, 1)")
        check_setting(self, "replay_share", 0 <= self.replay_share <= 1, "in [0, 1]")
        check_setting(self, "label_smoothing", 0 < self.label_smoothing < 0.5, "in (0, 0.5)")
