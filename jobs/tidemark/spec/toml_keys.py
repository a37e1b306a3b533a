"""Reads the keys of one TOML table, and says what is wrong with the file, the key and the remedy named."""

from __future__ import annotations

import difflib
import math
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Mapping
from datetime import UTC, datetime
from enum import StrEnum
from pathlib import Path
from typing import Any, NoReturn, TypeVar

from tidemark.errors import InvalidSpec

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(ms|s|min|h|d)")
_MS = {"ms": 1, "s": 1_000, "min": 60_000, "h": 3_600_000, "d": 86_400_000}
MOST_TRIES = 2
"""How often a table is read again because of one key: for a part of it, and for the whole."""

ASKING = ("format", "mode", "strategy")
"""Keys that decide which others there are."""
IDENTIFIER = re.compile(r"[a-z][a-z0-9_]{0,62}")
STREAM = re.compile(rf"{IDENTIFIER.pattern}|[0-9]{{1,3}}")
"""The name of a stream, which in older versions could be a number."""


def duration_ms(text: str) -> int | None:
    """Whole ms of a length such as `500 ms`, `1.5 s`, `5 min`, `2 h`, `1 d`; None when *text* is none of them.

    >>> duration_ms("1.5 s")
    1500
    """
    match = _DURATION.fullmatch(text.strip())
    length_ms = float(match[1]) * _MS[match[2]] if match else math.inf
    return round(length_ms) if length_ms < math.inf else None


def read_toml(path: Path) -> dict[str, Any]:
    """What the TOML file at *path* has; raises InvalidSpec where it is none."""
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidSpec.at(path.name, "file", f"is no TOML: {error}", "mend the line it names") from error


def length(ms: int) -> str:
    """A length of time as files have it: `duration_ms` the other way.

    >>> length(90_000), length(600_000)
    ('90 s', '10 min')
    """
    for unit, size_ms in reversed(_MS.items()):
        if ms >= size_ms and ms % size_ms == 0:
            return f"{ms // size_ms:,} {unit}"
    return f"{ms:,} ms"


def meant(word: str, known: Collection[str], what: str) -> str:
    """The remedy for *word*, which is none of the *known*: the nearest one, or all *what* there are.

    >>> meant("ownr", ["owner", "subject"], "keys"), meant("colour", ["owner", "subject"], "keys")
    ('did you mean owner?', 'known keys: owner, subject')
    """
    near = difflib.get_close_matches(word, known, n=1)
    return f"did you mean {near[0]}?" if near else f"known {what}: {', '.join(sorted(known))}"


def read_whole(
    file: str, at: str, content: Mapping[str, Any], read: Callable[[Keys], T]
) -> tuple[T | None, list[InvalidSpec]]:
    """What *read* makes of the table *content* at the place *at* of *file*, and every mistake in it.

    After a mistake the table is read again without it, until none is left: what *read* makes of that serves to find
    further mistakes elsewhere, and for nothing else.
    """
    found: dict[str, InvalidSpec] = {}
    tried: Counter[str] = Counter()
    written = content
    while True:
        keys = Keys(file, at, content)
        try:
            made = read(keys)
            keys.done()
            missing = [f"{at}.{key}" if at else key for key in keys.misspelt(written)]
            return made, [mistake for key, mistake in found.items() if key not in missing]
        except InvalidSpec as error:
            place = error.key.removeprefix(f"{at}.").split(".")
            wrong = {name.removeprefix(f"{at}.").split(".")[0] for name in tried}
            if error.key not in tried and not wrong.intersection(error.beside):
                found[error.key] = error
            repaired = keys.without(place, again=tried[error.key] > 0)
            tried[error.key] += 1
            if repaired is None or tried[error.key] > MOST_TRIES:
                return None, list(found.values())
            content = repaired


class Keys:
    """The keys of one table of *file*, at the dotted place *at*; `done` refuses those nobody asked for."""

    def __init__(self, file: str, at: str, content: Mapping[str, Any]) -> None:
        self.file, self.at, self.content = file, at, content
        self._asked: dict[str, tuple[str, bool]] = {}

    def fail(self, key: str, problem: str, remedy: str, *, beside: str | tuple[str, ...] = ()) -> NoReturn:
        """Raise InvalidSpec about *key*, which is no mistake where a key *beside* has one."""
        error = InvalidSpec.at(self.file, f"{self.at}.{key}" if self.at else key, problem, remedy)
        error.beside = (beside,) if isinstance(beside, str) else beside
        raise error

    def get(self, key: str, expected: type | tuple[type, ...], example: str, default: Any = ...) -> Any:
        """The value of *key*, of the *expected* type; *default* when it is missing and a default is given."""
        self._asked[key] = (example, default is not ...)
        if key not in self.content:
            if default is ...:
                self.fail(key, "is missing", f"write {key} = {example}")
            return default
        value = self.content[key]
        if not isinstance(value, expected) or (isinstance(value, bool) and expected is int):
            self.fail(key, f"is {value!r}", f"write {key} = {example}")
        return value

    def text(self, key: str, example: str, default: Any = ...) -> Any:
        """A string that is not empty, or *default*."""
        value = self.get(key, str, f'"{example}"', default)
        if value == "":
            self.fail(key, "is empty", f'write {key} = "{example}"')
        return value

    def name(self, key: str, example: str, default: Any = ..., *, form: re.Pattern[str] = IDENTIFIER) -> Any:
        """An identifier (lower case, digits, `_`), or what else has the *form*, or *default*."""
        value = self.text(key, example, default)
        if isinstance(value, str) and not form.fullmatch(value):
            self.fail(key, f"is {value!r}", "use a lower-case letter, then lower-case letters, digits and _")
        return value

    def names(self, key: str, example: str, default: Any = ...) -> Any:
        """A list of strings as a tuple, or *default*."""
        value = self.get(key, list, example, default)
        if isinstance(value, list):
            if not value or not all(isinstance(item, str) for item in value):
                self.fail(key, f"is {value!r}", f"write {key} = {example}")
            return tuple(value)
        return value

    def one_or_more(self, key: str, example: str, default: tuple[str, ...]) -> tuple[str, ...]:
        """A string, or a list of strings that has one; as a tuple. *default* when it is missing."""
        value = self.get(key, (str, list), example, default)
        texts = (value,) if isinstance(value, str) else tuple(value)
        if key in self.content and not (texts and all(isinstance(text, str) and text for text in texts)):
            self.fail(key, f"is {value!r}", f"write {key} = {example}, or a list of such")
        return texts

    def mapping(self, key: str, example: str, default: Any = ...) -> Any:
        """A table whose values are strings, or *default*."""
        value = self.get(key, dict, example, default)
        if isinstance(value, dict) and (not value or not all(isinstance(item, str) for item in value.values())):
            self.fail(key, f"is {value!r}", f"write {key} = {example}")
        return value

    def columns(self, key: str, example: str, default: Any = ...) -> Any:
        """A table of columns by name, as `mapping`."""
        value = self.mapping(key, example, default)
        for name in value:
            if not IDENTIFIER.fullmatch(name):
                self.fail(
                    f"{key}.{name}", "is no name for a column", "use a lower-case letter, then those, digits and _"
                )
        return value

    def duration(self, key: str, example: str, default: Any = ..., *, zero: bool = False) -> Any:
        """A length of time in ms, above 0 unless *zero* is allowed, or *default*."""
        value = self.text(key, example, default)
        if not isinstance(value, str):
            return value
        length_ms = duration_ms(value.strip().removeprefix("-"))
        if length_ms is None:
            self.fail(
                key, f"is {value!r}, which has no unit that is known", f'write {key} = "{example}" (ms, s, min, h, d)'
            )
        if value.strip().startswith("-") or (length_ms == 0 and not zero):
            least = "of 0 or more" if zero else "above 0"
            self.fail(key, f"is {value!r}", f'write a length {least}, such as {key} = "{example}"')
        return length_ms

    def count(self, key: str, example: str, default: Any) -> Any:
        """A whole number of 1 or more, or *default*."""
        value = self.get(key, int, example, default)
        if isinstance(value, int) and value < 1:
            self.fail(key, f"is {value}", f"write 1 or more, such as {key} = {example}")
        return value

    def counts(self, key: str, example: str) -> dict[str, int]:
        """A whole number of 1 or more for all, by the name "", or one for each name; none by default."""
        value = self.get(key, (int, dict), example, {})
        found = value if isinstance(value, dict) else {"": value}
        if not all(isinstance(n, int) and n >= 1 for n in found.values()):
            self.fail(key, f"is {value!r}", f"write {key} = {example}, or {key} = {{ NAME = {example} }}")
        return found

    def number(self, key: str, example: str, default: Any) -> float:
        """A number, or *default*."""
        value = self.get(key, (int, float), example, default)
        if isinstance(value, bool):
            self.fail(key, f"is {value!r}", f"write {key} = {example}")
        return float(value)

    def choice(self, key: str, among: type[E], default: E | None) -> E:
        """One word of the vocabulary *among*; without a *default* the key must be there."""
        value = self.text(key, default or next(iter(among)), ... if default is None else default)
        if value not in list(among):
            self.fail(key, f"is {value!r}", f"use one of {', '.join(among)}")
        return among(value)

    def one_of(self, examples: Mapping[str, str]) -> dict[str, Any]:
        """The one of the keys of *examples* that is there, with its text."""
        found = {
            key: value for key, example in examples.items() if (value := self.text(key, example, None)) is not None
        }
        if len(found) != 1:
            choices = " or ".join(f'{key} = "{example}"' for key, example in examples.items())
            problem = f"is there beside {list(found)[1]}" if found else "is missing"
            self.fail(next(iter(found or examples)), problem, f"write exactly one of {choices}")
        self._asked.update({key: (f'"{examples[key]}"', False) for key in found})  # none of them is no choice
        return found

    def pair(self, key: str, example: str, default: tuple[str, str]) -> tuple[str, str]:
        """A list of two strings, or *default*."""
        value = self.names(key, example, default)
        if len(value) != 2:
            self.fail(key, f"is {list(value)!r}", f"write {key} = {example}")
        return value[0], value[1]

    def instant_ms(self, text: str, key: str) -> int:
        """Epoch ms of an ISO date or instant; a date is midnight UTC."""
        try:
            instant = datetime.fromisoformat(text)
        except (TypeError, ValueError):
            self.fail(key, f"is {text!r}", 'write an ISO date, such as "2000-01-01"')
        return round((instant if instant.tzinfo else instant.replace(tzinfo=UTC)).timestamp() * 1000)

    def without(self, place: list[str], *, again: bool) -> dict[str, Any] | None:
        """The content without the mistake at *place*: without the key if it is optional, else with its example.

        A part of a map is left out alone, the first time: where it is wrong *again*, so is the whole.

        None when nobody knows how to go on without it.
        """
        (key, *inner), content = place, dict(self.content)
        example, is_optional = self._asked.get(key, ("", True))
        value = content.get(key)
        if not again and inner and isinstance(value, dict) and inner[0] in value and len(value) > 1:
            return content | {key: {name: part for name, part in value.items() if name != inner[0]}}
        if is_optional and key in content:
            return {name: part for name, part in content.items() if name != key}
        try:
            return content | tomllib.loads(f"{key} = {example}")
        except tomllib.TOMLDecodeError:
            return None

    def misspelt(self, written: Mapping[str, Any]) -> set[str]:
        """The keys that are missing in what was *written*, and are there with a slip of the pen."""
        unknown = [key for key in written if key not in self._asked]
        near = {name for key in unknown for name in difflib.get_close_matches(key, self._asked, n=1)}
        return near - {*written}

    def done(self) -> None:
        """Refuse keys that nobody asked for."""
        self.refuse_all_but(self._asked)

    def refuse_all_but(self, known: Collection[str]) -> None:
        """Refuse keys that are not *known*."""
        for key in self.content:
            if key not in known:
                self.fail(key, "is not a key of this place", meant(key, known, "keys"), beside=ASKING)
