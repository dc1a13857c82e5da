"""The words of the promise, the same on every surface; this module needs only the standard library."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from typing import Any, Self


@dataclass(frozen=True)
class Statement:
    """What may be said to the people whose advice aims at one class, or at any of several.

    Attributes:
        target: Label of the class; None: any.
        made: Whether the promise is made.
        reason: Why it is not made, as in `avcg.guarantees.conformal.Verdict`; empty where it is made.
        survival: Share of the people that a model must accept.
        reliability: Chance that the next model does.
        guarantee: What the chance is about, as in `avcg.guarantees.conformal.Promise`.
        confidence: Confidence of ``"most_models"``.
        n_models: Number of calibration models.
        n_rows: Number of calibration rows.
        needed_models: Least number of calibration models that can carry the promise.
        needed_rows: Least number of calibration rows that can carry it.
        reachable: Largest survival that could be promised instead.
        refused_rows: Number of calibration rows whose answer some model refuses at the largest margin.
        unanswered_rows: Number of calibration rows without an answer that the deployed model accepts.
        basis: Who calibrated: ``"models"``, ``"draws"`` around one network, or ``"moments"`` of the past. For moments,
            ``n_models`` and ``needed_models`` count these, and ``n_rows`` the people who were advised at them.
        horizon: Number of moments after which the model comes that the chance is about.
    """

    target: Any
    made: bool
    reason: str
    survival: float
    reliability: float
    guarantee: str
    confidence: float
    n_models: int
    n_rows: int
    needed_models: int
    needed_rows: int
    reachable: float
    refused_rows: int
    unanswered_rows: int
    basis: str = "models"
    horizon: int = 1

    def __str__(self) -> str:
        return self._promise() if self.made else self._refusal()

    def _promise(self) -> str:
        if self.basis == "moments":
            return self._promise_by_moments()
        share, next_one = out_of(self.survival), self._next_model()
        basis = f"checked with {_models(self.n_models)} and {_people(self.n_rows)}"
        if self.guarantee == "expected":  # who gets no advice is not refused, so this is no share of those who get some
            return (
                f"At most a {chance(self.survival)} chance that the next person gets advice that the next"
                f" {next_one} refuses; {basis}."
            )
        if self.guarantee == "most_models":
            return (
                f"At least {out_of(self.reliability)} {next_one.replace('model', 'models')} accept at least {share}"
                f" people who followed this advice, with {self.confidence:.4g} confidence; {basis}."
            )
        return (
            f"At most a {chance(self.reliability)} chance that the next {next_one} accepts fewer than {share}"
            f" people who followed this advice; {basis}."
        )

    def _next_model(self) -> str:
        return "model drawn around this network" if self.basis == "draws" else "retrained model"

    def _promise_by_moments(self) -> str:
        share, advised = out_of(self.survival), f"{_moments(self.n_models)} and {_people(self.n_rows)} advised at them"
        if self.guarantee == "most_models":
            return (
                f"At least {out_of(self.reliability)} models that come {_later(self.horizon)} accept at least {share}"
                f" people who followed this advice, with {self.confidence:.4g} confidence; calibrated by {advised}."
            )
        most = as_fraction(self.reliability) >= Fraction(self.n_models, self.n_models + 1)
        limit = ", which can carry no smaller chance" if most else ""
        return (
            f"At most a {chance(self.reliability)} chance that the model that comes {_later(self.horizon)} accepts"
            f" fewer than {share} people who followed this advice; calibrated by {advised}{limit}. Moments of one"
            " history are not independent of each other."
        )

    def _refusal(self) -> str:
        aim = "" if self.target is None else f" for the target {self.target!r}"
        which = f"the model that comes {_later(self.horizon)}" if self.basis == "moments" else f"a {self._next_model()}"
        return f"No promise{aim} that {which} accepts {out_of(self.survival)} people: {self._reason()}"

    def _reason(self) -> str:
        if self.reason == "models":
            number = "a survival" if self.guarantee == "expected" else "a reliability"
            value = self.survival if self.guarantee == "expected" else self.reliability
            return (
                f"{number} of {value} needs {_models(self.needed_models)} held back for calibration, and there"
                f" {'is' if self.n_models == 1 else 'are'} {self.n_models or 'none'}. Give more hypotheses, or ask for"
                " less."
            )
        if self.reason == "rows":
            return (
                f"it needs at least {self.needed_rows} people to calibrate by, and there"
                f" {'is' if self.n_rows == 1 else 'are'} {self.n_rows or 'none'}. Give more rows, or lower the"
                " survival."
            )
        if self.reason == "weights":
            return (
                "the hypotheses have unequal weights, so a count of them proves nothing about the next model. Draw"
                " hypotheses by their weights first."
            )
        if self.reason == "query":
            return "it was calibrated for single answers to queries without restrictions."
        if self.reason == "target":
            return "the past moments that calibrate it aimed at another decision. Run a backtest for this one too."
        if self.reason == "moments":
            return (
                f"a reliability of {self.reliability:.4g} with a confidence of {self.confidence:.4g} needs"
                f" {_moments(self.needed_models)}, and there"
                f" {'is' if self.n_models == 1 else 'are'} {self.n_models}. Look at more moments, or ask for less."
            )
        if self.basis == "moments":
            return (
                f"no margin was enough. With {_moments(self.n_models)}, at most {self.reachable:.3g} could be promised."
                " Ask for less, or train by hypotheses that differ more."
            )
        unanswered = f", and {self.unanswered_rows} more have no answer at all" if self.unanswered_rows else ""
        return (
            f"no margin is enough. At most {self.reachable:.3g} could be promised. The answers to {self.refused_rows}"
            f" of {_people(self.n_rows)} are refused by some model{unanswered}. Let more features change, train"
            " longer, or lower the promise."
        )

    def not_for_this_query(self) -> Self:
        """The statement for a query that asks for something other than the promise was calibrated by."""
        return replace(self, made=False, reason="query") if self.made else self

    def to_dict(self) -> dict[str, Any]:
        """The statement and its sentence as plain values."""
        return {**asdict(self), "sentence": str(self)}

    @classmethod
    def from_dict(cls, entry: Mapping[str, Any]) -> Self:
        """The statement that `to_dict` wrote.

        Args:
            entry: Plain values by name.
        """
        return cls(**{name: value for name, value in entry.items() if name != "sentence"})


def summary(statements: Iterable[Statement]) -> list[str]:
    """As few sentences as say everything: one where a promise is made alike for all targets.

    The chance is for each target separately: for several targets together it may add up.
    Where it is made for some targets alone, they are named.

    Args:
        statements: The statements, one for each target.
    """
    unique = list(dict.fromkeys(statements))
    if len(unique) > 1 and all(each.made for each in unique) and len({each.n_models for each in unique}) == 1:
        sentence = replace(unique[0], target=None, n_rows=sum(each.n_rows for each in unique))
        return [f"For each target: {_in_sentence(sentence)}"]
    if len(unique) == 1:
        return [str(unique[0])]
    return [f"For the target {each.target!r}: {_in_sentence(each)}" if each.made else str(each) for each in unique]


def agreement(agreeing: int, n: int, accepting_unchanged: int = 0, harmed: int = 0) -> str:
    """What the held-out models say of one answer, and a caution where no change may be as good or better.

    Args:
        agreeing: Number of held-out models that accept the answer.
        n: Number of held-out models.
        accepting_unchanged: Number of these that accept the row as it is.
        harmed: Number of these that accept the row as it is, and refuse the answer.

    >>> agreement(24, 24), agreement(23, 24)
    ('accepted by all 24 models held back from training', 'accepted by 23 of 24 models held back from training')
    >>> agreement(1, 1), agreement(2, 2)
    ('accepted by the one model held back from training', 'accepted by both models held back from training')
    >>> agreement(24, 24, accepting_unchanged=20).split("; ")[1]
    '20 of 24 accept the row without any change, so that waiting may do'
    >>> agreement(20, 24, accepting_unchanged=5, harmed=2).split("; ")[1]
    '2 of 24 accept the row only without this change, so that it may do harm'
    """
    if n == 1:
        says = f"{'accepted' if agreeing else 'refused'} by the one model held back from training"
    else:
        everyone = "both" if n == 2 else f"all {n}"
        count = everyone if agreeing == n else f"{agreeing or 'none'} of {n}"
        says = f"accepted by {count} models held back from training"
    if harmed:
        only = f"accept{'s' * (harmed == 1)} the row only without this change"
        return f"{says}; {harmed} of {n} {only}, so that it may do harm"
    if 2 * accepting_unchanged > n:
        same = f"accept{'s' * (accepting_unchanged == 1)} the row without any change"
        return f"{says}; {accepting_unchanged} of {n} {same}, so that waiting may do"
    return says


def proof(agreeing: int, n: int, lower_bound: float, confidence: float) -> str:
    """What the test models prove of one answer by themselves, for readers who ask.

    Args:
        agreeing: Number of test models that accept the answer.
        n: Number of test models.
        lower_bound: Lower bound on the share of all models that do.
        confidence: Confidence of the bound.

    >>> proof(5, 5, 0.5493, 0.95)
    '5 of 5 test models, which were used for nothing else, accept it. Alone they prove that at least 54 % of all such \
models do, with 95 % confidence: few models prove little.'
    """
    if not n:
        return "There are no test models, so nothing is proven of this answer alone."
    percent = math.floor(100 * lower_bound + 1e-9)  # rounded down, because a larger number would not be proven
    return (
        f"{agreeing} of {n} test model{'s' * (n != 1)}, which {'were' if n != 1 else 'was'} used for nothing else,"
        f" accept{'s' * (n == 1)} it. Alone {'they prove' if n != 1 else 'it proves'} that at least {percent} % of all"
        f" such models do, with {100 * confidence:.4g} % confidence: few models prove little."
    )


def discovery(shown: int, rate: float, n: int, n_test: int, survival: float) -> str:
    """What the test models prove of many answers at once, and what it means that they are the same for all.

    Args:
        shown: Number of answers with the lowest false discovery rate.
        rate: That rate; see `avcg.guarantees.Certificate.false_discovery_rate`.
        n: Number of answers.
        n_test: Number of test models.
        survival: Share of all models that an answer is to be accepted by.

    >>> discovery(90, 0.0312, 100, 200, 0.95).split(":")[0]
    '90 of 100 answers are each accepted by more than 95 of 100 models, with a false discovery rate of 0.032'
    """
    same = f"the same {n_test} test models judge" if n_test != 1 else "the same test model judges"
    if not n or rate >= 1:
        return (
            f"No answer is proven by itself to be accepted by more than {out_of(survival)} models: {same} every"
            " answer, so more answers prove no more, and more test models would."
        )
    return (
        f"{shown} of {n} answers are each accepted by more than {out_of(survival)} models, with a false discovery rate"
        f" of {math.ceil(1000 * rate - 1e-9) / 1000:g}: at most that share of them is expected to be claimed wrongly."
        f" This allows for the fact that {same} every answer."
    )


def chance(reliability: float) -> str:
    """The chance that a promise is broken, in words.

    >>> chance(0.9), chance(0.95), chance(0.93)
    ('1 in 10', '1 in 20', '7 in 100')
    """
    broken = 1 - as_fraction(reliability)
    return f"{broken.numerator} in {broken.denominator}"


def out_of(share: float) -> str:
    """A share in words, of a hundred if that is exact, else of a larger power of ten.

    >>> out_of(0.95), out_of(0.5), out_of(0.999)
    ('95 of 100', '50 of 100', '999 of 1000')
    """
    exact, whole = as_fraction(share), 100
    while (exact * whole).denominator != 1 and whole < 10**9:
        whole *= 10
    return f"{float(exact * whole):.12g} of {whole}"


def as_fraction(share: float) -> Fraction:
    """A share as the fraction that it stands for: the float 0.9 is a little more than nine tenths.

    >>> as_fraction(0.9), as_fraction(12 / 13)
    (Fraction(9, 10), Fraction(12, 13))
    """
    return Fraction(repr(float(share))).limit_denominator(10**12)


def _in_sentence(statement: Statement) -> str:
    sentence = str(statement)
    return sentence[0].lower() + sentence[1:]


def _models(count: int) -> str:
    return f"{count} model{'s' * (count != 1)}"


def _moments(count: int) -> str:
    return f"{count} past moment{'s' * (count != 1)}"


def _later(horizon: int) -> str:
    return "one moment later" if horizon == 1 else f"{horizon} moments later"


def _people(count: int) -> str:
    return f"{count} {'people' if count != 1 else 'person'}"
