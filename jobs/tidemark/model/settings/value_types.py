"""The types of values in files: text, lengths of time, counts, words and tables.

A type reads a value of a TOML file, or refuses it with what was seen and what to write. It also has its word for the
reference pages and its form for JSON Schemas, so that parser, pages and editors agree.
"""

from __future__ import annotations

import difflib
import json
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Any, Generic, NoReturn, TypeAlias, TypeVar

from tidemark.model.settings.lengths import DURATION, duration_ms
from tidemark.selection import outside

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")
U = TypeVar("U")
Form: TypeAlias = Mapping[str, Any]
"""The form of a key's values, as a JSON Schema."""

TEXT: Form = {"type": "string", "minLength": 1}
TEXTS: Form = {"type": "array", "items": {"type": "string"}, "minItems": 1}
ADDRESS: Form = {"type": "string", "pattern": "^https?://"}
COUNT: Form = {"type": "integer", "minimum": 1}
LENGTH: Form = {"type": "string", "pattern": rf"^\s*{DURATION.pattern}\s*$"}
LENGTH_ABOVE_0: Form = {**LENGTH, "not": {"pattern": r"^\s*0+(\.0+)?\s*[a-z]"}}
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,62}")
HOW_TO_NAME = "use a lower-case letter, then lower-case letters, digits and _"
"""The remedy for what is no IDENTIFIER."""
JSON_TYPES: Mapping[type, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"
}  # fmt: skip
WORDS: Mapping[type, str] = {
    str: "string", int: "integer", float: "number", bool: "boolean", list: "list", dict: "table"
}  # fmt: skip


ANYTHING = (bool, object)
"""The types of a value that is judged as it is, for example because a message must not show it."""


class UnfitValue(Exception):  # what reads a table tells it as a mistake
    """Raised for a value that is not of its type, with the *problem* and the *remedy*.

    *part* names the wrong key if the value is a table; it is empty if the whole value is wrong.
    """

    def __init__(self, problem: str, remedy: str, *, part: str = "") -> None:
        super().__init__(problem, remedy)
        self.problem, self.remedy, self.part = problem, remedy, part


@dataclass(frozen=True)
class ValueType(Generic[T]):
    """A type of values.

    Attributes:
        word: its name in reference pages.
        types: the types of TOML that a value may have.
        form: the JSON Schema of its values.
        judge: converts a value of one of *types* to the one that Tidemark uses, or raises UnfitValue. It gets the value
            and, for the remedy, the name of the key and an example in TOML.
    """

    word: str
    types: tuple[type, ...]
    form: Form
    judge: Callable[[Any, str, str], T]

    def read(self, value: object, key: str, example: str) -> T:
        """Converts the *value* of *key* to the one that Tidemark uses.

        Raises UnfitValue if *value* is not of this type. *example* is a valid value, in TOML, for the remedy.
        """
        # For Python a bool is an int.
        if not isinstance(value, self.types) or (isinstance(value, bool) and bool not in self.types):
            _refuse_value(value, key, example)
        return self.judge(value, key, example)

    def then(self, judge: Callable[[T, str, str], U], form: Form | None = None) -> ValueType[U]:
        """Returns the type of the values that *judge* accepts after this type; *form* replaces its JSON Schema."""
        return ValueType(
            self.word, self.types, form or self.form, lambda value, *told: judge(self.judge(value, *told), *told)
        )


def refuse(problem: str, remedy: str, *, part: str = "") -> NoReturn:
    """Raises UnfitValue."""
    raise UnfitValue(problem, remedy, part=part)


def _refuse_value(value: object, key: str, example: str) -> NoReturn:
    refuse(f"is {seen(value)}", f"write {key} = {example}")


def seen(value: object) -> str:
    """Returns *value* for a message; of tables in a list, which may have secrets, only that they are tables."""
    if isinstance(value, list) and any(isinstance(item, dict) for item in value):
        return "a list of tables"
    return repr(value)


def _filled(value: str, key: str, example: str) -> str:
    if not value:
        refuse("is empty", f"write {key} = {example}")
    return value


def plain(*types: type, form: Form | None = None) -> ValueType[Any]:
    """The type of values that are used as they are; *form* may replace its JSON Schema."""
    word = " or ".join(WORDS[each] for each in types)
    return ValueType(word, types, form or {"type": [JSON_TYPES[each] for each in types]}, lambda value, *_: value)


def flag() -> ValueType[bool]:
    """The type of true and false."""
    return plain(bool)


def true() -> ValueType[bool]:
    """The type of keys whose only value is true: a table has such a key, or leaves it out."""

    def judge(value: object, key: str, _: str) -> bool:
        if value is not True:
            refuse(f"is {value!r}", f"write {key} = true, or leave it out")
        return True

    return ValueType("boolean", ANYTHING, {"const": True}, judge)


def text(form: Form = TEXT) -> ValueType[str]:
    """The type of strings that are not empty; *form* may replace its JSON Schema."""
    return ValueType("string", (str,), form, _filled)


def name(pattern: re.Pattern[str] = IDENTIFIER) -> ValueType[str]:
    """The type of names that match *pattern* as a whole."""

    def judge(value: str, *_: str) -> str:
        if not pattern.fullmatch(value):
            refuse(f"is {value!r}", HOW_TO_NAME)
        return value

    whole = "|".join(f"^{branch}$" for branch in pattern.pattern.split("|"))
    return text({"type": "string", "pattern": whole}).then(judge)


def texts() -> ValueType[tuple[str, ...]]:
    """The type of lists of strings that are not empty."""

    def judge(value: list[object] | str, key: str, example: str) -> tuple[str, ...]:
        if isinstance(value, str):
            _refuse_value(value, key, json.dumps([value], ensure_ascii=False) if value else example)
        if not value or not all(isinstance(item, str) for item in value):
            _refuse_value(value, key, example)
        return tuple(map(str, value))

    return ValueType("list", (list, str), TEXTS, judge)


def pair() -> ValueType[tuple[str, str]]:
    """The type of lists of two strings."""

    def judge(value: list[object], key: str, example: str) -> tuple[str, str]:
        match value:
            case [str() as one, str() as other]:
                return one, other
            case _:
                _refuse_value(value, key, example)

    return ValueType("list", (list,), {**TEXTS, "minItems": 2, "maxItems": 2}, judge)


def one_or_more() -> ValueType[tuple[str, ...]]:
    """The type of a string, or a list of strings."""

    def judge(value: list[object] | str, key: str, example: str) -> tuple[str, ...]:
        written = [value] if isinstance(value, str) else value
        if not written or not all(isinstance(item, str) and item for item in written):
            _refuse_value(value, key, f"{example}, or a list of such values")
        return tuple(map(str, written))

    return ValueType("string or list", (str, list), {"anyOf": [TEXT, {**TEXTS, "items": TEXT}]}, judge)


def mapping(names: re.Pattern[str] | None = None) -> ValueType[Mapping[str, str]]:
    """The type of tables of strings; *names* is the form of their keys in the JSON Schema, which the caller checks."""
    form = {"type": "object", "minProperties": 1, "additionalProperties": {"type": "string"}}
    if names:
        form["propertyNames"] = {"pattern": f"^{names.pattern}$"}

    def judge(value: dict[str, Any], key: str, example: str) -> Mapping[str, str]:
        if not value or not all(isinstance(item, str) for item in value.values()):
            _refuse_value(value, key, example)
        return value

    return ValueType("table", (dict,), form, judge)


def columns() -> ValueType[Mapping[str, str]]:
    """The type of tables of strings by the names of columns."""

    def judge(value: Mapping[str, str], *_: str) -> Mapping[str, str]:
        for column in value:
            if not IDENTIFIER.fullmatch(column):
                refuse("is not a valid column name", HOW_TO_NAME, part=column)
        return value

    return mapping(IDENTIFIER).then(judge)


def length(*, zero: bool = False) -> ValueType[int]:
    """The type of lengths of time, whole ms: above 0, or of 0 or more."""

    def judge(value: str, key: str, example: str) -> int:
        length_ms = duration_ms(value.strip().removeprefix("-"))
        if length_ms is None:
            refuse(f"is {value!r}, which has no known unit", f"write {key} = {example} (ms, s, min, h, d)")
        if value.strip().startswith("-") or (length_ms == 0 and not zero):
            least = "of 0 or more" if zero else "above 0"
            refuse(f"is {value!r}", f"write a length {least}, such as {key} = {example}")
        return length_ms

    return replace(text(LENGTH if zero else LENGTH_ABOVE_0).then(judge), word="length of time")


def length_or(word: str, *, zero: bool = False) -> ValueType[int | None]:
    """The type of lengths of time, as `length`, and of a *word* for none, which Tidemark has as None."""
    of_length = length(zero=zero)

    def judge(value: str, key: str, example: str) -> int | None:
        return None if value == word else of_length.judge(value, key, example)

    return ValueType(of_length.word, (str,), {"anyOf": [{"const": word}, of_length.form]}, judge)


def count(least: int = 1, most: int | None = None) -> ValueType[int]:
    """The type of whole numbers of *least* or more, and of *most* or less if that is set."""

    def judge(value: int, key: str, example: str) -> int:
        if value < least:
            refuse(f"is {value}", f"write {least} or more, such as {key} = {example}")
        if most is not None and value > most:
            refuse(f"is {value}", f"write {most} or less")
        return value

    limit = {} if most is None else {"maximum": most}
    return ValueType("integer", (int,), {**COUNT, "minimum": least, **limit}, judge)


def counts() -> ValueType[dict[str, int]]:
    """The type of numbers from 1 on: either one for all, which is stored under the name "", or one for each name."""

    def judge(value: int | dict[str, Any], key: str, example: str) -> dict[str, int]:
        numbers = value if isinstance(value, dict) else {"": value}
        if not all(isinstance(n, int) and n >= 1 for n in numbers.values()):
            _refuse_value(value, key, f"{example}, or {key} = {{ NAME = {example} }}")
        return numbers

    form = {"anyOf": [COUNT, {"type": "object", "additionalProperties": COUNT}]}
    return ValueType("integer or table", (int, dict), form, judge)


def number() -> ValueType[float]:
    """The type of numbers."""
    return ValueType("number", (int, float), {"type": "number"}, lambda value, *_: float(value))


def suggestion_of(word: str, words: Collection[str], what: str) -> str:
    """Returns the remedy for *word*, which is not among *words*: the nearest of them, or a list of all.

    *what* is the noun for the words, in the plural.

    >>> suggestion_of("ownr", ["owner", "subject"], "keys"), suggestion_of("colour", ["owner", "subject"], "keys")
    ('did you mean owner?', 'known keys: owner, subject')
    """
    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {near[0]}?" if near else f"known {what}: {', '.join(sorted(words))}"


def _all_and_nearest(written: str, among: Collection[str]) -> str:
    near = difflib.get_close_matches(written, among, n=1)
    return ", ".join(among) + (f"; did you mean {near[0]}?" if near else "")


class _OneOf(Mapping[str, Any]):
    """The JSON Schema of words.

    The words are asked for only when the schema is read, because an open list is not complete while modules are
    imported.
    """

    def __init__(self, words: Callable[[], Collection[str]]) -> None:
        self._words = words

    def __getitem__(self, key: str) -> list[str]:
        return {"enum": [*map(str, self._words())]}[key]

    def __iter__(self) -> Iterator[str]:
        return iter(("enum",))

    def __len__(self) -> int:
        return 1


def word(among: Collection[str] | Callable[[], Collection[str]]) -> ValueType[str]:
    """The type of single words: *among* has the allowed ones, or returns them."""
    words = among if callable(among) else lambda: among

    def judge(value: str, *_: str) -> str:
        if value not in words():
            refuse(f"is {value!r}", f"use one of {_all_and_nearest(value, words())}")
        return value

    return text(_OneOf(words)).then(judge)


def choice(among: type[E]) -> ValueType[E]:
    """The type of the members of the enum *among*."""
    return word([*among]).then(lambda value, *_: among(value))


def words(among: Collection[str]) -> ValueType[tuple[str, ...]]:
    """The type of lists of words; *among* has the allowed ones."""

    def judge(value: tuple[str, ...], *_: str) -> tuple[str, ...]:
        if unknown := outside(value, among):
            refuse(f"has {unknown[0]!r}", f"use any of {_all_and_nearest(unknown[0], among)}")
        return value

    return texts().then(judge, {**TEXTS, "items": {"enum": [*map(str, among)]}})
