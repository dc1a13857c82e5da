"""The columns of a table as a schema holds them: features, links, rules, and how they are found by name.

This module imports only the standard library, for the light scorer.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Self

from avcg.errors import SchemaError, did_you_mean, enumerate_some
from avcg.schema.features import Categorical, Continuous, Feature, columns_of, to_python
from avcg.schema.rules import Derivation, Rule, check_rules


@dataclass(frozen=True, repr=False)
class Columns:
    """What a schema holds, checked, and looked up.

    The fields are those of `avcg.Schema`, which adds the verbs.
    """

    features: tuple[Feature, ...]
    links: tuple[tuple[str, ...], ...] = ()
    max_changes: int | None = None
    kept: tuple[str, ...] = ()
    rules: tuple[Rule, ...] = ()

    def __post_init__(self) -> None:
        object.__setattr__(self, "features", tuple(self.features))
        object.__setattr__(self, "links", tuple(tuple(group) for group in self.links))
        object.__setattr__(self, "max_changes", to_python(self.max_changes))
        object.__setattr__(self, "kept", tuple(self.kept))
        object.__setattr__(self, "rules", tuple(dict.fromkeys(self.rules)))
        if not self.features:
            raise SchemaError("A schema needs at least one column. Got none.")
        names: set[str] = set()
        for feature in self.features:
            if not isinstance(feature, Feature) or not isinstance(feature.name, str):
                raise SchemaError(
                    f"A schema is made of Continuous and Categorical features with text names. Got {feature!r}."
                )
            if feature.name in names:
                raise SchemaError(f"Column {feature.name!r} appears twice. Rename one of them.")
            names.add(feature.name)
        self._check_columns()
        for i, group in enumerate(self.links):
            if len(group) < 2 or len(set(group)) < len(group):
                raise SchemaError(f"link needs at least two different columns. Got {enumerate_some(group)}.")
            for name in group:
                self[name]
                if any(name in other for other in self.links[:i]):
                    raise SchemaError(f"Column {name!r} is linked already; name all columns of a link in one call.")
        if self.max_changes is not None and (
            isinstance(self.max_changes, bool) or not isinstance(self.max_changes, int) or self.max_changes < 1
        ):
            raise SchemaError(f"The cap of at_most must be a whole number >= 1. Got {self.max_changes!r} instead.")
        check_rules(self)

    def _check_columns(self) -> None:
        """Refuse columns that would be read twice."""
        for i, name in enumerate(columns := (*self.columns, *self.kept)):
            if not isinstance(name, str):
                raise SchemaError(f"The columns of a schema are named by texts. Got {name!r}.")
            if name in columns[:i]:
                raise SchemaError(f"Column {name!r} is read twice. Name it in one feature, or in 'kept'.")
        for feature in self.grouped:
            if feature.name in columns and feature.name not in (feature.columns or ()):
                raise SchemaError(f"Feature {feature.name!r} has the name of another column. Choose another name.")

    def __getitem__(self, name: str) -> Feature:
        if isinstance(name, str):
            for feature in self.features:
                if feature.name == name:
                    return feature
            for feature in self.grouped:
                if name in (feature.columns or ()):
                    return feature
        elif isinstance(name, Iterable):
            raise SchemaError(f"Columns are named one by one. Write {', '.join(map(repr, name))} without the list.")
        if name in self.kept:
            raise SchemaError(
                f"Column {name!r} is kept as it is and no feature, so nothing can be said of its changes."
            )
        raise SchemaError(f"There is no column {name!r} in the schema. {did_you_mean(name, self.names)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.features)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Names of the features, in the order of the encoded row."""
        return tuple(feature.name for feature in self.features)

    @cached_property
    def columns(self) -> tuple[str, ...]:
        """The columns that rows must have, in the order of the encoded row."""
        return tuple(name for feature in self.features for name in columns_of(feature))

    @cached_property
    def all_names(self) -> tuple[str, ...]:
        """All names by which a feature can be called: its own, and those of its columns."""
        return tuple(dict.fromkeys((*self.names, *self.columns)))

    @cached_property
    def grouped(self) -> tuple[Categorical, ...]:
        """The features that are several columns."""
        return tuple(feature for feature in self.categorical if feature.columns is not None)

    @cached_property
    def numeric(self) -> tuple[Continuous, ...]:
        """The numeric features, in order."""
        return tuple(feature for feature in self.features if isinstance(feature, Continuous))

    @cached_property
    def categorical(self) -> tuple[Categorical, ...]:
        """The categorical features, in order."""
        return tuple(feature for feature in self.features if isinstance(feature, Categorical))

    @cached_property
    def derivations(self) -> dict[str, Derivation]:
        """The rule of each derived column, by its name."""
        return {rule.column: rule for rule in self.rules if isinstance(rule, Derivation)}

    def with_rule(self, rule: Rule) -> Self:
        """This schema with one more rule, as `require`, `derive` and `when` make them."""
        return replace(self, rules=(*self.rules, rule))

    def _number(self, column: str, verb: str) -> Continuous:
        feature = self[column]
        if isinstance(feature, Continuous):
            return feature
        raise SchemaError(f"{verb} is for numbers; column {column!r} is a {feature.kind}. Use allow or forbid.")

    def _choice(self, column: str, verb: str) -> Categorical:
        feature = self[column]
        if isinstance(feature, Categorical):
            return feature
        raise SchemaError(f"{verb} is for categories; column {column!r} is a {feature.kind}. Use between or step.")
