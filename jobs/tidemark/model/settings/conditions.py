"""Conditions on a table, by which it may have a key, or must: another key is there, or has one of some words."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tidemark.model.settings.value_types import Form

if TYPE_CHECKING:
    from tidemark.model.settings.declared_tables import Key


@dataclass(frozen=True, kw_only=True, eq=False)
class Condition:
    """A condition that a table fulfils if it has one of *keys*.

    With *words*, the value of one of *keys* must be among them. A key that the table leaves out has its default as its
    value, or None if it has no default.
    """

    keys: tuple[Key[Any], ...]
    words: tuple[object, ...] = ()

    def holds(self, table: Mapping[str, Any]) -> bool:
        """Returns True if *table*, as parsed from TOML, fulfils the condition."""
        if self.words:
            return any(table.get(key.name, key.default) in self.words for key in self.keys)
        return any(key.name in table for key in self.keys)

    @property
    def names(self) -> frozenset[str]:
        """The names of the keys that decide."""
        return frozenset(key.name for key in self.keys)

    @property
    def form(self) -> Form:
        """The JSON Schema of tables that fulfil the condition."""
        forms = [self._form_of(key) for key in self.keys]
        return forms[0] if len(forms) == 1 else {"anyOf": forms}

    def _form_of(self, key: Key[Any]) -> Form:
        present: Form = {"required": [key.name]}
        if not self.words:
            return present
        words = [word for word in self.words if word is not None]
        of_word: Form = {"properties": {key.name: {"enum": words} if words else False}}
        return of_word if key.default in self.words else {**of_word, **present}

    def as_seen(self, table: Mapping[str, Any]) -> str:
        """Returns what *table* has as the value of these keys, for messages."""
        names = " or ".join(key.name for key in self.keys)
        values = [table.get(key.name, key.default) for key in self.keys]
        seen = next((value for value in values if value is not None), None)
        if seen is None:
            return f"there is no {names}"
        if self.words and self.words != (None,):
            return f"{names} is {str(seen).lower() if isinstance(seen, bool) else repr(str(seen))}"
        return f"{next(key.name for key in self.keys if key.name in table)} is set"

    @property
    def remedy(self) -> str:
        """What to write so that the condition holds; empty if a key has to be left out for that."""
        word = next((word for word in self.words if word is not None), None)
        if self.words and word is None:
            return ""
        return " or ".join(f"{key.name} = {json.dumps(word) if self.words else key.example}" for key in self.keys)

    @property
    def for_pages(self) -> str:
        """The words or keys with which, or without which, the condition holds, in Markdown."""
        words = [word for word in self.words if word is not None] or [key.name for key in self.keys]
        return f"{'without' if self.words == (None,) else 'with'} {', '.join(f'`{word}`' for word in words)}"


def given(*keys: Key[Any]) -> Condition:
    """Returns the condition that one of *keys* is there."""
    return Condition(keys=keys)


def has_word(key: Key[Any], *words: object) -> Condition:
    """Returns the condition that *key* has one of *words*, by itself or by default."""
    return Condition(keys=(key,), words=words)


def left_out(key: Key[Any]) -> Condition:
    """Returns the condition that *key*, which has no default, is not there."""
    return Condition(keys=(key,), words=(None,))


@dataclass(frozen=True, eq=False)
class Needs:
    """Conditions that must all hold, so that a table may have a key, or must have it.

    Messages and pages name only the first. *because* is the reason that messages give; without a reason they advise to
    write what fulfils the condition.
    """

    conditions: tuple[Condition, ...]
    because: str = ""

    @property
    def names(self) -> frozenset[str]:
        """The names of the keys that decide."""
        return frozenset().union(*(condition.names for condition in self.conditions))

    def unmet_in(self, table: Mapping[str, Any]) -> Condition | None:
        """Returns the first condition that *table* does not fulfil; None if it fulfils all."""
        return next((condition for condition in self.conditions if not condition.holds(table)), None)

    @property
    def form(self) -> Form:
        """The JSON Schema of tables that fulfil all conditions."""
        forms = [condition.form for condition in self.conditions]
        return forms[0] if len(forms) == 1 else {"allOf": forms}


def needs(*conditions: Condition, because: str = "") -> Needs:
    """Returns the need that all *conditions* hold."""
    return Needs(conditions, because)
