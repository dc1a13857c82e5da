"""What is said over the wire: requests, answers and refusals. The only place where pydantic is used."""

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

_LONGEST = 600  # of a reason: a value that is quoted in it may be a whole book

# What a column that somebody was told about can be.
_DTYPE = (
    r"^(object|category|bool|boolean|str|string|u?int(8|16|32|64)|U?Int(8|16|32|64)|[fF]loat(32|64)"
    r"|datetime64\[[^\]]{1,40}\])$"
)
_KINDS = (str, bool, int, float, type(None))
_FARTHEST = 2**63  # whole numbers beyond it are no 64-bit integers, and nothing that anybody measures


def _checked(cells: Iterable[tuple[object, Any]]) -> None:
    """Refuse the first cell that is no plain, finite value: a million wrong ones must not make a million errors."""
    for name, value in cells:
        kind = type(value)
        if kind is float and math.isfinite(value):
            continue
        if kind not in _KINDS or kind is float or (kind is int and abs(value) >= _FARTHEST):
            raise PydanticCustomError(
                "cell", "{name}: must be a text, a finite number, true, false or null", {"name": str(name)}
            )


def _row(row: dict[str, Any]) -> dict[str, Any]:
    _checked(row.items())
    return row


def _listed(cells: list[Any]) -> list[Any]:
    _checked(enumerate(cells))
    return cells


def _whole(value: Any) -> Any:
    """1.0 is a whole number to JSON."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


Item = TypeVar("Item")
Whole = Annotated[int, BeforeValidator(_whole)]
Label = str | bool | int | float
Cell = TypeAliasType("Cell", Label | None)
Cells = TypeAliasType("Cells", Annotated[list[Any], AfterValidator(_listed)])
Ranges = TypeAliasType("Ranges", dict[str, Cells])
FeatureRow = TypeAliasType("FeatureRow", Annotated[dict[str, Any], AfterValidator(_row)])
Several = Annotated[list[Item], FailFast()]
Names = TypeAliasType("Names", Several[str])
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
Flag = Literal[0, 1]


class Message(BaseModel):
    """Nothing but what is written down, of the very type that is written down; no NaN, no infinity."""

    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class ExplainRequest(Message):
    """Rows, and what is wanted for them. Everything but the rows is for all of them alike."""

    rows: Several[FeatureRow] = Field(min_length=1, description="Every column of the schema, and no other.")
    target: Label | None = Field(None, description="The decision wanted; null: any other than the present one.")
    n: Whole = Field(1, ge=1, description="Answers for each row.")
    vary: Names | None = Field(None, description="The columns that may change; null: all that the schema lets.")
    ranges: Ranges | None = Field(
        None, description="By column, where an answer may go: [low, high], either null, or a list of categories."
    )
    min_prob: float | None = Field(None, gt=0, lt=1, description="The probability of the target that is needed.")
    max_changes: Whole | None = Field(None, ge=0, le=10_000, description="How many features may change at once.")


class Change(Message):
    """What a column was and what it becomes."""

    before: Cell
    after: Cell


class Answer(Message):
    """One answer to one row."""

    status: Status
    meaning: str = Field(description="The status in words.")
    changes: dict[str, Change] = Field(description="Only what differs, by column.")
    row: dict[str, Cell] = Field(description="The whole row with the changes made.")
    probability: float | None = Field(description="Of the target under the model in force, with the changes made.")
    distance: float | None = Field(description="What the changes cost.")
    agreeing: Count | None = Field(description="Models set aside that decide for the target; null: there are none.")
    n_models: Count = Field(description="Models set aside.")
    lower_bound: Share | None = Field(description="On the share of all models that would agree, at `confidence`.")
    repeated: bool = Field(description="The same as an earlier answer, for want of another.")


class AnsweredRow(Message):
    """The answers to one row, the best first."""

    decision: Cell = Field(description="As things are.")
    target: Cell = Field(description="The decision asked for.")
    probability_before: float | None = Field(description="Of the target, as things are.")
    options: list[Answer]


class ExplainAnswer(Message):
    """One entry for each row, in the order of the request."""

    rows: list[AnsweredRow]
    survival: Share = Field(description="The share of models that was promised to agree.")
    confidence: Share = Field(description="Of lower bounds.")
    assumption: str = Field(description="What the certificates rest on.")


class Column(Message):
    """One column: what it is, and what an answer may do to it."""

    name: str
    kind: str = Field(description="In words.")
    type: Literal["number", "category"]
    change: Literal["any", "up", "down", "none"] = Field(description="Which way it may move.")
    missing: bool = Field(description="Whether it may be null.")
    typical: Cell = Field(description="A value to start from.")
    low: float | None = Field(description="The lowest number an answer may have; null for categories.")
    high: float | None = Field(description="The highest number an answer may have; null for categories.")
    seen_low: float | None = Field(description="The lowest number in the training rows.")
    seen_high: float | None = Field(description="The highest number in the training rows.")
    step: float | None = Field(description="Answers are multiples of it; null: any number.")
    categories: list[Cell] | None = Field(description="In order, where they have one; null for numbers.")
    ordered: bool
    moves: list[list[Cell]] | None = Field(description="For each category those that an answer may move it to.")
    follows: str | None = Field(description="The column it changes with, which carries the same fact.")


class RequestLimits(Message):
    """How much one request may ask."""

    rows: int
    body_bytes: int
    answers: int = Field(description="For each row.")
    total: int = Field(description="Rows times answers.")
    seconds: float


class SchemaAnswer(Message):
    """All columns, the classes, what is promised, and rows to begin with."""

    columns: list[Column]
    links: list[list[str]] = Field(description="Columns that change together; the first leads.")
    max_changes: int | None = Field(description="How many features may change at once; null: any number.")
    classes: list[Cell]
    survival: Share
    confidence: Share
    n_models: Count
    assumption: str
    limits: RequestLimits
    examples: list[FeatureRow]


class HealthAnswer(Message):
    """That the service is up."""

    status: Literal["ok"]
    version: str


class Refusal(Message):
    """Why there is no answer."""

    reason: str
    where: str | None = Field(description="The field that is at fault, where there is one.")
    id: str | None = Field(description="Under which a failure of the service itself is logged.")


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
    """What set-aside models said."""

    n: int = Field(ge=1)
    confidence: float = Field(gt=0, lt=1)
    agreeing: Several[Count]
    lower_bound: Several[float | None]
    mean: Several[float | None]
    variance: Several[float | None]
    markov: Several[float | None]
    cantelli: Several[float | None]


class StoredAnswers(BaseModel):
    """What `Counterfactuals.to_json` wrote, of rows of a table."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    format: Literal["avcg.counterfactuals"]
    version: Literal[1]
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

    @model_validator(mode="after")
    def _complete(self) -> StoredAnswers:
        rows, delivered = len(self.target), len(self.target) * self.n
        sure = self.certificate
        parts: list[list[Any]] = [] if sure is None else [
            sure.agreeing, sure.lower_bound, sure.mean, sure.variance, sure.markov, sure.cantelli
        ]  # fmt: skip
        parts += [self.statuses, self.probability, self.distance, self.changed, self.repeated]
        whole = len(self.factuals) == rows == len(self.probability_before) and len(self.answers) == delivered
        if not whole or any(len(part) != delivered for part in parts):
            raise ValueError("there must be one entry for each row, and n for each row of what speaks of answers")
        if any(len(line) != len(self.factuals.columns) for line in self.changed):
            raise ValueError("'changed' must have one entry for each column")
        return self


class RefusedError(Exception):
    """A request that is not answered.

    Attributes:
        status: Of HTTP.
        reason: One sentence.
        where: The field at fault.
    """

    def __init__(self, status: int, reason: str, where: str | None = None) -> None:
        super().__init__(status)
        self.status, self.where = status, where
        self.reason = reason if len(reason) <= _LONGEST else f"{reason[:_LONGEST]}..."


Read = TypeVar("Read", bound=BaseModel)


def read(kind: type[Read], body: bytes) -> Read:
    """A body as a message.

    Args:
        kind: Of message.
        body: JSON.

    Raises:
        RefusedError: With the field at fault and the reason.

    >>> read(ExplainRequest, b'{"rows": [{"age": 40}], "n": "three"}')
    Traceback (most recent call last):
    ...
    avcg.serve.messages.RefusedError: 422
    """
    try:
        return kind.model_validate_json(body)
    except ValidationError as error:
        raise _refused(error, kind) from None


def _refused(error: ValidationError, kind: type[BaseModel]) -> RefusedError:
    first = error.errors(include_url=False, include_input=False)[0]
    words = str(first["msg"]).removeprefix("Value error, ")
    words = words[:1].lower() + words[1:]
    if first["type"] == "json_invalid":
        return RefusedError(400, f"The body is no JSON: {words.removeprefix('invalid JSON: ')}.")
    path = [str(part) for part in first["loc"]]
    if first["type"] == "cell":
        path.append(first["ctx"]["name"])
        words = words.removeprefix(f"{path[-1]}: ")
    elif path[:1] == ["target"] and kind is ExplainRequest:
        path, words = path[:1], "must be a text, a finite number, true, false or null"  # no list of types tried
    elif first["type"] == "extra_forbidden":
        words = f"there is no such field; there are {', '.join(kind.model_fields)}"
    where = ".".join(path) or None
    return RefusedError(422, f"{where or 'The body'}: {words}.", where)
