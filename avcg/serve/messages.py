"""Messages of the service: requests, answers and refusals. The only module that uses pydantic."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Annotated, Any, Literal, TypeVar

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    FailFast,
    Field,
    ValidationError,
    model_validator,
)
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from avcg.explainers.records import Status
from avcg.method.query import Effort

_MAX_REASON = 600  # characters of a reason, which may quote a value of any length

# Dtypes of the columns of stored answers.
_DTYPE = (
    r"^(object|category|bool|boolean|str|string|u?int(8|16|32|64)|U?Int(8|16|32|64)|[fF]loat(32|64)"
    r"|datetime64\[[^\]]{1,40}\])$"
)
_CELL_TYPES = (str, bool, int, float, type(None))
_MAX_INT = 2**63  # larger integers do not fit in 64 bits


def _check_cells(cells: Iterable[tuple[object, Any]]) -> None:
    """Refuse the first cell that is not a plain, finite value, so that a million invalid cells make one error."""
    for name, value in cells:
        kind = type(value)
        if kind is float and math.isfinite(value):
            continue
        if kind not in _CELL_TYPES or kind is float or (kind is int and abs(value) >= _MAX_INT):
            raise PydanticCustomError(
                "cell", "{name}: must be a text, a finite number, true, false or null", {"name": str(name)}
            )


def _check_row(row: dict[str, Any]) -> dict[str, Any]:
    _check_cells(row.items())
    return row


def _check_list(cells: list[Any]) -> list[Any]:
    _check_cells(enumerate(cells))
    return cells


def _to_int(value: Any) -> Any:
    """The integer that a float such as 1.0 stands for in JSON; other values unchanged."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Item = TypeVar("Item")
Integer = Annotated[int, BeforeValidator(_to_int)]
Label = str | bool | int | float
Cell = TypeAliasType("Cell", Label | None)
Cells = TypeAliasType("Cells", Annotated[list[Any], AfterValidator(_check_list)])
Ranges = TypeAliasType("Ranges", dict[str, Cells])
FeatureRow = TypeAliasType("FeatureRow", Annotated[dict[str, Any], AfterValidator(_check_row)])
Several = Annotated[list[Item], FailFast()]
Names = TypeAliasType("Names", Several[str])
Share = Annotated[float, Field(ge=0, le=1)]
Shares = TypeAliasType("Shares", Several[Share])
Portion = Annotated[float, Field(gt=0, lt=1)]
Count = Annotated[int, Field(ge=0)]
Counts = TypeAliasType("Counts", Several[Count])
Flag = Literal[0, 1]


class Message(BaseModel):
    """A message with exactly the declared fields and types, and without NaN and infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ExplainRequest(Message):
    """Rows, and options that apply to all of them."""

    rows: Several[FeatureRow] = Field(
        min_length=1, description="Rows, each with every column of the schema and no other."
    )
    target: Label | None = Field(None, description="The decision wanted; null: any other than the present one.")
    n: Integer = Field(1, ge=1, description="Number of answers for each row.")
    vary: Names | None = Field(None, description="Columns that may change; null: all that the schema allows.")
    ranges: Ranges | None = Field(
        None,
        description="Values that answers may take, by column: [low, high], either of which may be null, or a list of"
        " categories.",
    )
    min_prob: float | None = Field(
        None, gt=0, lt=1, description="Probability of the target that the deployed model must give an answer."
    )
    max_changes: Integer | None = Field(
        None, ge=0, le=10_000, description="Largest number of features that may change at once; null: as in the schema."
    )
    effort: Effort = Field("standard", description="Work spent on answers that are closer to the row.")
    typicality: float | None = Field(
        None,
        ge=0,
        le=1,
        description="How typical answers are, from 0, the nearest to the row, to 1, like the people who were accepted;"
        " null: the explainer's default.",
    )


class Change(Message):
    """Old and new value of a column."""

    before: Cell
    after: Cell


class PromiseStatement(Message):
    """What may be said to the people whose advice aims at one class."""

    target: Cell = Field(description="Label of the class.")
    made: bool = Field(description="Whether the promise is made.")
    reason: Literal["", "models", "rows", "weights", "margin", "moments", "target", "query"] = Field(
        description="Why it is not made: too few calibration models or rows, models with unequal weights, no margin"
        " that is enough, too few past moments, or a target or query that it was not calibrated for. Empty where it is"
        " made."
    )
    survival: Portion = Field(description="Share of the people that a model must accept.")
    reliability: Portion = Field(description="Chance that the next model does.")
    guarantee: Literal["next_model", "most_models", "expected"] = Field(description="What the chance is about.")
    confidence: Portion = Field(description='Confidence of the guarantee "most_models".')
    n_models: Count = Field(description="Number of calibration models.")
    n_rows: Count = Field(description="Number of calibration rows.")
    needed_models: Count = Field(description="Least number of calibration models that can carry the promise.")
    needed_rows: Count = Field(description="Least number of calibration rows that can carry it.")
    reachable: Share = Field(description="Largest survival that could be promised instead.")
    refused_rows: Count = Field(
        description="Number of calibration rows whose answer some model refuses at the largest margin."
    )
    unanswered_rows: Count = Field(
        description="Number of calibration rows without an answer that the deployed model accepts."
    )
    basis: Literal["models", "draws", "moments"] = Field(
        description="Who calibrated. Past moments are then counted in place of models, and people advised at them."
    )
    horizon: Count = Field(description="Number of moments after which the model comes that the chance is about.")
    sentence: str = Field(description="All of this in one sentence.")


class Answer(Message):
    """One answer to one row."""

    status: Status
    meaning: str = Field(description="The status in words.")
    changes: dict[str, Change] = Field(description="Old and new value of each column that changes.")
    row: dict[str, Cell] = Field(description="The complete row after the changes.")
    probability: float | None = Field(
        description="Probability of the target under the deployed model after the changes."
    )
    distance: float | None = Field(description="Cost of the changes, at the prices of the schema.")
    agreement: str | None = Field(
        description="What the models held back from training say of the answer, in words; null: there are none, or"
        " nothing changes."
    )
    proof: str | None = Field(
        description="What the test models among them prove of this answer alone, in words; null likewise."
    )
    agreeing: Count | None = Field(
        description="Number of models held back from training that accept the answer; null: there are none."
    )
    n_models: Count = Field(description="Number of models held back from training.")
    agreeing_test: Count | None = Field(description="Number of test models that accept it; null: none are held back.")
    n_test: Count = Field(description="Number of test models among those held back, used for nothing else.")
    lower_bound: Share | None = Field(
        description="Lower bound on the share of all models that accept it, proven by the test models at `confidence`;"
        " null: none are held back."
    )
    accepting_unchanged: Count | None = Field(
        description="Number of models held back from training that accept the row as it is: waiting may do; null: none"
        " are held back."
    )
    harmed: Count | None = Field(
        description="Number of these that refuse the answer, so that the change may do harm; null likewise."
    )
    repeated: bool = Field(description="Whether it repeats an earlier answer, since no other was found.")


class AnsweredRow(Message):
    """The answers to one row, the best first."""

    decision: Cell = Field(description="The present decision.")
    target: Cell = Field(description="The decision wanted.")
    probability_before: float | None = Field(description="Probability of the target at present.")
    options: list[Answer]


class ExplainAnswer(Message):
    """Answers to all rows, in the order of the request."""

    rows: list[AnsweredRow]
    promise: str = Field(description="What is promised to these people, in words; empty without calibration.")
    statements: list[PromiseStatement] = Field(description="The same for each class that answers aim at.")
    survival: Share = Field(description="Share of the held-out models that must accept an answer for it to be ok.")
    confidence: Share = Field(description="Confidence of lower bounds.")
    assumption: str = Field(description="The assumptions of promise and certificates, in words.")


class Column(Message):
    """A column, and how an answer may change it."""

    name: str
    kind: str = Field(description="The kind of the column in words.")
    type: Literal["number", "category"]
    change: Literal["any", "up", "down", "none"] = Field(description="Direction in which it may change.")
    missing: bool = Field(description="Whether it may be null.")
    columns: list[str] | None = Field(description="The columns of 0 and 1 of rows that hold it; null: its own name.")
    thermometer: bool = Field(description="Whether the category is the number of columns set, not the one column set.")
    typical: Cell = Field(description="A value to start from.")
    low: float | None = Field(description="The lowest number an answer may have; null for categories.")
    high: float | None = Field(description="The highest number an answer may have; null for categories.")
    seen_low: float | None = Field(description="The lowest number in the training rows.")
    seen_high: float | None = Field(description="The highest number in the training rows.")
    step: float | None = Field(description="Answers are multiples of it; null: any number.")
    categories: list[Cell] | None = Field(description="The categories, in their order if `ordered`; null for numbers.")
    ordered: bool
    moves: list[list[Cell]] | None = Field(description="For each category, those that an answer may change it to.")
    follows: str | None = Field(description="The column that it changes with, if that carries the same fact.")


class RequestLimits(Message):
    """Limits of a request."""

    rows: int = Field(description="Largest number of rows.")
    body_bytes: int = Field(description="Largest size of the body.")
    answers: int = Field(description="Largest number of answers for each row.")
    total: int = Field(description="Largest number of rows times answers.")
    seconds: float = Field(description="Time until a request is given up.")


class SchemaAnswer(Message):
    """The columns, classes, promise and limits of the service, and example rows."""

    columns: list[Column]
    links: list[list[str]] = Field(description="Groups of columns that change together; the first leads.")
    max_changes: int | None = Field(description="Largest number of features that may change at once; null: any number.")
    classes: list[Cell]
    promise: str = Field(
        description="What is promised to people who get one answer without restrictions, in words; empty without"
        " calibration."
    )
    statements: list[PromiseStatement] = Field(description="The same for each class.")
    survival: Share
    confidence: Share
    typicality: Share = Field(description="How typical answers are if a request does not say.")
    n_models: Count
    n_test: Count
    assumption: str
    limits: RequestLimits
    examples: list[FeatureRow]


class HealthAnswer(Message):
    """The state of the service, if it is up."""

    status: Literal["ok"]
    version: str


class Refusal(Message):
    """The reason why a request has no answer."""

    reason: str
    where: str | None = Field(description="The field at fault; null: no single field is.")
    id: str | None = Field(description="Identifier of the error in the log of the service, if the service failed.")


class StoredColumn(BaseModel):
    """A column of a stored table."""

    dtype: str = Field(pattern=_DTYPE)
    categories: Cells | None = None
    ordered: bool | None = None
    values: Cells


class StoredTable(BaseModel):
    """A stored table, by columns."""

    columns: dict[str, StoredColumn] = Field(min_length=1)
    index: Several[StoredColumn] = Field(min_length=1)
    index_names: Cells

    @model_validator(mode="after")
    def _rectangular(self) -> StoredTable:
        lengths = {len(column.values) for column in (*self.columns.values(), *self.index)}
        if len(lengths) != 1 or len(self.index_names) != len(self.index):
            raise ValueError("all columns and the index of a table must have the same number of rows")
        return self

    def __len__(self) -> int:
        return len(self.index[0].values)


class StoredCertificate(BaseModel):
    """The certificate of stored answers."""

    n: int = Field(ge=1, description="Number of models held back from training.")
    agreeing: Several[Count] = Field(description="Number of these that accept each answer.")
    n_test: Count = Field(description="Number of test models among them.")
    agreeing_test: Several[Count] = Field(description="Number of test models that accept each answer.")
    lower_bound: Several[float | None] = Field(description="What the test models prove of each answer.")
    confidence: float = Field(gt=0, lt=1, description="Confidence of the lower bounds.")
    accepting_unchanged: Counts | None = Field(None, description="Number that accept each row as it is.")
    harmed: Counts | None = Field(None, description="Number of these that refuse each answer.")
    false_discovery_rate: Shares | None = Field(
        None, description="Lowest false discovery rate at which each answer is among those that keep the survival."
    )


class StoredGroup(BaseModel):
    """A category that is held by several columns of 0 and 1."""

    name: str = Field(description="Name of the feature.")
    categories: Cells = Field(description="The categories.", min_length=2)
    ordered: bool = Field(description="Whether the order of the categories means something.")
    columns: Several[str] = Field(description="The columns, in the order of the categories.")


class StoredAnswers(BaseModel):
    """Answers to rows of a table, as `Counterfactuals.to_json` writes them."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    format: Literal["avcg.counterfactuals"]
    version: Literal[2]
    n: int = Field(ge=1)
    survival: float = Field(gt=0, lt=1)
    factuals: StoredTable
    answers: StoredTable
    target: Cells = Field(min_length=1)
    statuses: Several[Status]
    probability: Several[float | None]
    probability_before: Several[float | None]
    distance: Several[float | None]
    changed: Several[Several[Flag]]
    repeated: Several[Flag]
    certificate: StoredCertificate | None
    statements: Several[PromiseStatement]
    groups: Several[StoredGroup] = Field(default=[], description="Features that are several columns.")

    @model_validator(mode="after")
    def _complete(self) -> StoredAnswers:
        n_rows, n_answers = len(self.target), len(self.target) * self.n
        c = self.certificate
        per_answer: list[list[Any]] = [] if c is None else [c.agreeing, c.agreeing_test, c.lower_bound]
        if c is not None:
            optional = (c.false_discovery_rate, c.accepting_unchanged, c.harmed)
            per_answer += [values for values in optional if values is not None]
        per_answer += [self.statuses, self.probability, self.distance, self.changed, self.repeated]
        complete = len(self.factuals) == n_rows == len(self.probability_before) and len(self.answers) == n_answers
        if not complete or any(len(values) != n_answers for values in per_answer):
            raise ValueError("lists about rows must have one entry for each row, and lists about answers n entries")
        grouped = sum(len(group.columns) - 1 for group in self.groups)
        if any(len(line) != len(self.factuals.columns) - grouped for line in self.changed):
            raise ValueError("'changed' must have one entry for each column, and for each of the 'groups'")
        return self


class RefusedError(Exception):
    """A request that is refused.

    Args:
        status: HTTP status.
        reason: Why it is refused, one sentence; long ones are cut off.
        where: Name of the field at fault; None: no single field is.
    """

    def __init__(self, status: int, reason: str, where: str | None = None) -> None:
        super().__init__(status)
        self.status, self.where = status, where
        self.reason = reason if len(reason) <= _MAX_REASON else f"{reason[:_MAX_REASON]}..."


Read = TypeVar("Read", bound=BaseModel)


def read(kind: type[Read], body: bytes) -> Read:
    """Parse the body of a request.

    Args:
        kind: Class of the message.
        body: The message as JSON.

    Raises:
        RefusedError: If the body is not JSON or not such a message, with the field at fault and the reason.

    >>> read(ExplainRequest, b'{"rows": [{"age": 40}], "n": "three"}')
    Traceback (most recent call last):
    ...
    avcg.serve.messages.RefusedError: 422
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refusal(error, kind) from None


def _refusal(error: ValidationError, kind: type[BaseModel]) -> RefusedError:
    first = error.errors(include_url=False, include_input=False)[0]
    words = str(first["msg"]).removeprefix("Value error, ")
    words = words[:1].lower() + words[1:]
    if first["type"] == "json_invalid":
        return RefusedError(400, f"The body is not JSON: {words.removeprefix('invalid JSON: ')}.")
    path = [str(part) for part in first["loc"]]
    if first["type"] == "cell":
        path.append(first["ctx"]["name"])
        words = words.removeprefix(f"{path[-1]}: ")
    elif path[:1] == ["target"] and kind is ExplainRequest:
        path, words = path[:1], "must be a text, a finite number, true, false or null"  # pydantic lists every type
    elif first["type"] == "extra_forbidden":
        words = f"there is no such field; the fields are {', '.join(kind.model_fields)}"
    where = ".".join(path) or None
    return RefusedError(422, f"{where or 'The body'}: {words}.", where)
