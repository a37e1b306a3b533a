"""Reads the keys of one TOML table, and reports mistakes.

A mistake names the file, the key and the remedy.
"""

from __future__ import annotations

import difflib
import re
import tomllib
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Any, Generic, NamedTuple, NoReturn, TypeVar

from tidemark.collecting import omit
from tidemark.errors import InvalidSpec
from tidemark.model.settings import value_types
from tidemark.model.settings.value_types import IDENTIFIER, TEXT, Form, UnfitValue, ValueType

E = TypeVar("E", bound=StrEnum)
T = TypeVar("T")
MOST_TRIES = 2
"""A table is read again so often because of one key.

Once without a part of the key, and once without the whole.
"""

ASKING: tuple[str, ...] = ()
"""Keys that decide which other keys exist."""


def read_toml(path: Path) -> dict[str, Any]:
    """Reads the TOML file at *path*.

    Raises:
        InvalidSpec: it is not valid TOML.
    """
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except tomllib.TOMLDecodeError as error:
        raise InvalidSpec.at(
            path.name, "file", f"is not valid TOML: {error}", "correct the line that it names"
        ) from error


def suggestion_of(word: str, words: Collection[str], what: str) -> str:
    """Returns the remedy for *word*, which is none of *words*.

    It is the nearest one, or all *what* there are.

    >>> suggestion_of("ownr", ["owner", "subject"], "keys"), suggestion_of("colour", ["owner", "subject"], "keys")
    ('did you mean owner?', 'known keys: owner, subject')
    """
    near = difflib.get_close_matches(word, words, n=1)
    return f"did you mean {near[0]}?" if near else f"known {what}: {', '.join(sorted(words))}"


class _TableReading(NamedTuple, Generic[T]):
    """What reading a table gave: its mistakes, and the declarations of the keys that were asked for.

    *result* is None if the table could not be read to its end.
    """

    result: T | None
    mistakes: list[InvalidSpec]
    asked: Mapping[str, Declaration]


def read_whole(
    file: str, at: str, content: Mapping[str, Any], read: Callable[[Keys], T]
) -> tuple[T | None, list[InvalidSpec]]:
    """Reads the table *content* at *at* of *file*; returns every mistake.

    After a mistake the table is read again without it, until none is left. The result of that serves to find further
    mistakes elsewhere, and for nothing else. A key of ASKING decides which other keys exist: after a wrong one, only
    those mistakes are told which the table has with every word that could stand there.
    """
    reading = _read_table(file, at, content, read)
    return reading.result, reading.mistakes


def _read_table(file: str, at: str, content: Mapping[str, Any], read: Callable[[Keys], T]) -> _TableReading[T]:
    """Reads a table as `read_whole` does."""
    reading = _read_repaired(file, at, content, read)
    for number, mistake in enumerate(reading.mistakes):
        key = mistake.key.removeprefix(f"{at}.")
        words = reading.asked[key].form.get("enum", ()) if key in ASKING and key in reading.asked else ()
        if words and content.get(key) not in words:
            told = reading.mistakes[: number + 1]
            others = _mistakes_with_each(file, at, content, key, words, read)
            told += [other for other in others if other.key not in {known.key for known in told}]
            return reading._replace(mistakes=told)
    return reading


def _mistakes_with_each(
    file: str, at: str, content: Mapping[str, Any], key: str, words: Iterable[str], read: Callable[[Keys], object]
) -> list[InvalidSpec]:
    """Returns the mistakes that the table *content* has with each of *words* as its *key*.

    A word that cannot stand there does not count.
    """
    readings = [_read_table(file, at, {**content, key: word}, read) for word in words]
    by_key: list[dict[str, InvalidSpec]] = []
    has_this: set[str] = set()
    for reading in readings:
        found = {mistake.key: mistake for mistake in reading.mistakes}
        if reading.result is None:
            # It was not read to its end: the others must tell the mistakes, of keys that this word does not have.
            has_this |= {_place(at, asked) for asked in reading.asked} - found.keys()
        elif _place(at, key) not in found:
            by_key.append(found)
    common: list[InvalidSpec] = []
    for place in by_key[0] if by_key else ():
        alike = [found[place] for found in by_key if place in found]
        if len(alike) < len(by_key) or place in has_this:
            continue
        of_value = [mistake for mistake in alike if mistake.beside is not ASKING]
        if of_value or len({*map(str, alike)}) == 1:
            common.append((of_value or alike)[0])
        else:
            remedy = f"leave it out: it belongs to no {key}"
            common.append(InvalidSpec.at(file, place, "is not a valid key here", remedy))
    return common


def read_inner(keys: Keys, key: str, content: Mapping[str, Any], read: Callable[[Keys], T]) -> T:
    """Reads the table *content* of *key*.

    Raises:
        InvalidSpec: with a line for each mistake.
    """
    at = _place(keys.at, key)
    result, mistakes = read_whole(keys.file, at, content, read)
    if len(mistakes) == 1:
        raise mistakes[0]
    if mistakes or result is None:
        error = InvalidSpec("\n".join(map(str, mistakes)))
        error.key = at
        raise error
    return result


def _place(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


def _read_repaired(file: str, at: str, content: Mapping[str, Any], read: Callable[[Keys], T]) -> _TableReading[T]:
    """Reads a table again without each mistake, as `read_whole` says."""
    mistakes: dict[str, InvalidSpec] = {}
    tried: Counter[str] = Counter()
    written = content
    while True:
        keys = Keys(file, at, content)
        try:
            result = read(keys)
            keys.done()
            # A misspelt key has a mistake of its own, which explains the missing one.
            misspelt = keys.misspelt(written)
            missing = [f"{at}.{key}" if at else key for key in misspelt]
            missing += [
                key
                for key, error in mistakes.items()
                if misspelt.intersection(error.beside) and key.removeprefix(f"{at}.") in keys.asked
            ]
            told = [mistake for key, mistake in mistakes.items() if key not in missing]
            return _TableReading(result, told, keys.asked)
        except InvalidSpec as error:
            place = error.key.removeprefix(f"{at}.").split(".")
            # The place again, or one beside it, only shows that the repair was not good enough.
            wrong = {name.removeprefix(f"{at}.").split(".")[0] for name in tried}
            if error.key not in tried and not wrong.intersection(error.beside):
                mistakes[error.key] = error
            repaired = keys.without(place, again=tried[error.key] > 0)
            tried[error.key] += 1
            if repaired is None or tried[error.key] > MOST_TRIES:
                return _TableReading(None, list(mistakes.values()), keys.asked)
            content = repaired


def _without_part(table: Mapping[str, Any], place: Sequence[str]) -> dict[str, Any] | None:
    """Returns *table* without what is at *place* inside of it; None if it is not there, or would leave nothing."""
    key, *inner = place
    value = table.get(key)
    if inner and isinstance(value, dict) and (part := _without_part(value, inner)):
        return {**table, key: part}
    return omit(table, [key]) or None if key in table else None


class Declaration(NamedTuple):
    """The declaration of a key, by the reader that asks for it.

    The *example* is TOML; *form* is that of its values.
    """

    example: str
    is_optional: bool
    form: Form
    default: Any = None


@dataclass
class Reading:
    """The tables that were read, and the mistakes, each in its order."""

    tables: list[Keys] = field(default_factory=list)
    mistakes: list[InvalidSpec] = field(default_factory=list)


_observed: ContextVar[Reading | None] = ContextVar("_observed", default=None)


@contextmanager
def observed() -> Iterator[Reading]:
    """Collects the tables and mistakes of all files read inside.

    `tidemark schema` so learns which keys exist.
    """
    reading = Reading()
    token = _observed.set(reading)
    try:
        yield reading
    finally:
        _observed.reset(token)


class Keys:
    """The keys of one table of *file*, at the dotted place *at*.

    `done` refuses unknown keys. *asked* has the declaration of each key.
    """

    def __init__(self, file: str, at: str, content: Mapping[str, Any]) -> None:
        self.file, self.at, self.content = file, at, content
        self.asked: dict[str, Declaration] = {}
        if (reading := _observed.get()) is not None:
            reading.tables.append(self)

    def fail(self, key: str, problem: str, remedy: str, *, beside: str | tuple[str, ...] = ()) -> NoReturn:
        """Raises InvalidSpec about *key*.

        It is no mistake if a key *beside* has one.
        """
        error = InvalidSpec.at(self.file, f"{self.at}.{key}" if self.at else key, problem, remedy)
        error.beside = (beside,) if isinstance(beside, str) else beside
        if (reading := _observed.get()) is not None:
            reading.mistakes.append(error)
        raise error

    def read(self, key: str, of_type: ValueType[Any], example: str, default: Any = ...) -> Any:
        """Returns the value of *key* as its type reads it, or *default*; *example* is TOML."""
        # A key is asked for again where its first value decides how it is read.
        first = self.asked.get(key)
        self.asked[key] = Declaration(example, default is not ..., first.form if first else of_type.form, default)
        if key not in self.content:
            if default is ...:
                self.fail(key, "is missing", f"write {key} = {example}")
            return default
        try:
            return of_type.read(self.content[key], key, example)
        except UnfitValue as unfit:
            self.fail(f"{key}.{unfit.part}" if unfit.part else key, unfit.problem, unfit.remedy)

    def get(
        self,
        key: str,
        expected: type | tuple[type, ...],
        example: str,
        default: Any = ...,
        *,
        form: Form | None = None,
    ) -> Any:
        """Returns the value of *key*, of the *expected* type, or *default*.

        *form* says more of its values than their type; its mistakes are refused by the caller.
        """
        types = expected if isinstance(expected, tuple) else (expected,)
        return self.read(key, value_types.plain(*types, form=form), example, default)

    def text(self, key: str, example: str, default: Any = ..., *, form: Form = TEXT) -> Any:
        """Returns a string that is not empty, or *default*."""
        return self.read(key, value_types.text(form), f'"{example}"', default)

    def name(self, key: str, example: str, default: Any = ..., *, form: re.Pattern[str] = IDENTIFIER) -> Any:
        """Returns an identifier (lower case, digits, `_`), or *default*.

        Another *form* may be given.
        """
        return self.read(key, value_types.name(form), f'"{example}"', default)

    def names(self, key: str, example: str, default: Any = ...) -> Any:
        """Returns a list of strings as a tuple, or *default*."""
        return self.read(key, value_types.texts(), example, default)

    def mapping(self, key: str, example: str, default: Any = ..., *, names: re.Pattern[str] | None = None) -> Any:
        """Returns a table whose values are strings, or *default*.

        *names* is the form of its keys, which the caller checks.
        """
        return self.read(key, value_types.mapping(names), example, default)

    def duration(self, key: str, example: str, default: Any = ..., *, zero: bool = False) -> Any:
        """Returns a time in ms, above 0 unless *zero*, or *default*."""
        return self.read(key, value_types.length(zero=zero), f'"{example}"', default)

    def count(self, key: str, example: str, default: Any, *, least: int = 1) -> Any:
        """Returns a whole number of *least* or more, or *default*."""
        return self.read(key, value_types.count(least), example, default)

    def word(self, key: str, words: Collection[str], default: str | None = None) -> str:
        """Returns one of *words*; without a *default* the key is required."""
        example = f'"{default or next(iter(words))}"'
        value: str = self.read(key, value_types.word(words), example, ... if default is None else default)
        return value

    def choice(self, key: str, among: type[E], default: E | None) -> E:
        """Returns a word of *among*; without a *default* the key is required."""
        return among(self.word(key, [*among], default))

    def choice_if_set(self, key: str, among: type[E]) -> E | None:
        """Returns a word of *among*; None without the key."""
        word: E | None = self.read(key, value_types.choice(among), f'"{next(iter(among))}"', None)
        return word

    def without(self, place: list[str], *, again: bool) -> dict[str, Any] | None:
        """Returns the content without the mistake at *place*.

        It lacks the key if that is optional, else the key has its example. A part of a map is left out alone, the first
        time: where it is wrong *again*, so is the whole. None when the content cannot be repaired.
        """
        (key, *inner), content = place, dict(self.content)
        example, is_optional, *_ = self.asked.get(key, ("", True))
        value = content.get(key)
        if not again and inner and isinstance(value, dict) and (part := _without_part(value, inner)):
            return content | {key: part}
        if is_optional and key in content:
            return {name: part for name, part in content.items() if name != key}
        try:
            return content | tomllib.loads(f"{key} = {example}")
        except tomllib.TOMLDecodeError:
            return None

    def misspelt(self, written: Mapping[str, Any]) -> set[str]:
        """Returns the keys that are missing in *written* and nearly present there."""
        near: set[str] = set()
        for key in written:
            if key not in self.asked:
                near.update(difflib.get_close_matches(key, self.asked, n=1))
        return near - {*written}

    def done(self) -> None:
        """Refuses unknown keys."""
        for key in self.content:
            if key not in self.asked:
                self.fail(key, "is not a valid key here", suggestion_of(key, self.asked, "keys"), beside=ASKING)
