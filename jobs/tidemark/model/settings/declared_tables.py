"""Declares the keys of a table of a file once.

The parser, the JSON Schema, the reference page and the template of `tidemark init` follow from the declarations. All
mistakes of single keys are told at once. A rule that compares several keys is judged unless one of them has a mistake.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Generic, NoReturn, TypeVar

from tidemark.collecting import names_in
from tidemark.errors import InvalidSpec
from tidemark.model.settings import value_types
from tidemark.model.settings.toml_keys import suggestion_of
from tidemark.model.settings.value_types import Form, UnfitValue, ValueType

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Key(Generic[T_co]):
    """A key of a table.

    Attributes:
        name: what the file calls it.
        of_type: the type of its values.
        example: a right value, in TOML.
        meaning: what it does, for people, in Markdown.
        is_required: a table must have it.
        default: what counts without the key, as a file would have it; None: nothing does.
        without: what a table without the key means, for people, where *default* does not say it.
        inner: the keys of its value, which is a table then; its value is Values.
        is_list: its value is a list of such tables.
    """

    name: str
    of_type: ValueType[Any]
    example: str
    meaning: str
    is_required: bool = False
    default: object = None
    without: str = "none"
    inner: TableForm | None = None
    is_list: bool = False

    def read(self, value: object) -> T_co:
        """Returns the *value* in a file as Tidemark has it.

        Raises UnfitValue if it is not of its type.
        """
        read: T_co = self.of_type.read(value, self.name, self.example)
        return read

    @property
    def default_value(self) -> T_co:
        """What counts without the key, as Tidemark has it."""
        nothing: Any = None
        return nothing if self.default is None else self.read(self.default)

    @property
    def default_text(self) -> str | None:
        """Its default as in a file; None without one."""
        return None if self.default is None else json.dumps(self.default)

    @property
    def schema(self) -> Form:
        """The JSON Schema of its values."""
        form = self.inner.schema if self.inner else self.of_type.form
        form = {"type": "array", "items": form} if self.is_list else form
        usual = {} if self.default is None else {"default": self.default}
        example = tomllib.loads(f"value = {self.example}")["value"]
        return {**form, "description": self.meaning, **usual, "examples": [example]}


def required(name: str, of_type: ValueType[T], *, example: str, meaning: str) -> Key[T]:
    """Declares a key that every table has."""
    return Key(name=name, of_type=of_type, example=example, meaning=meaning, is_required=True)


def optional(name: str, of_type: ValueType[T], *, example: str, meaning: str, without: str = "none") -> Key[T | None]:
    """Declares a key whose value is None in a table that does not have it."""
    return Key(name=name, of_type=of_type, example=example, meaning=meaning, without=without)


def defaulted(name: str, of_type: ValueType[T], *, example: str, meaning: str, default: object) -> Key[T]:
    """Declares a key with a *default*, which is written as in a file."""
    return Key(name=name, of_type=of_type, example=example, meaning=meaning, default=default)


def inner_table(name: str, form: TableForm, *, example: str, meaning: str) -> Key[Values | None]:
    """Declares a key whose value is a table with the keys of *form*."""
    return Key(name=name, of_type=value_types.plain(dict), example=example, meaning=meaning, inner=form)


def inner_tables(name: str, form: TableForm, *, example: str, meaning: str) -> Key[Sequence[Values]]:
    """Declares a key whose value is a list of tables with the keys of *form*; by default it is empty."""
    of_type = value_types.plain(list)
    return Key(name=name, of_type=of_type, example=example, meaning=meaning, default=[], inner=form, is_list=True)


class MistakenKey(Exception):
    """Ends a rule that asks for the value of a key with a mistake."""


class Values:
    """The values of the table *at* a dotted place of *file*, and the *mistakes* that were found in it.

    *written* is the table in the file, and *kind* that of the table, if it has one. The whole file is at "".
    """

    def __init__(self, file: str, at: str) -> None:
        self.file, self.at = file, at
        self.mistakes: list[InvalidSpec] = []
        self.kind: TableKind | None = None
        self.written: Mapping[str, Any] = {}
        self._values: dict[str, Any] = {}

    def __getitem__(self, key: Key[T]) -> T:
        """Returns the value of *key*.

        Raises MistakenKey if it has a mistake.
        """
        if key.name not in self._values:
            raise MistakenKey(key.name)
        value: T = self._values[key.name]
        return value

    def fail(self, key: Key[Any], problem: str, remedy: str) -> NoReturn:
        """Raises InvalidSpec about *key*: for rules."""
        raise InvalidSpec.at(self.file, _place(self.at, key.name), problem, remedy)

    def judge(self, *rules: Callable[[Values], object]) -> None:
        """Notes what is refused by *rules*, each of which compares several keys."""
        for rule in rules:
            try:
                rule(self)
            except InvalidSpec as mistake:
                self.mistakes.append(mistake)
            except MistakenKey:
                continue

    def read(self, declared: Sequence[Key[Any]], value: object) -> None:
        """Reads the *value* of a key; it is wrong if none of the *declared* keys of that name has such values."""
        refused = []
        for key in declared:
            try:
                self._values[key.name] = self._read_inside(key, key.read(value))
            except UnfitValue as unfit:
                refused.append(unfit)
        if len(refused) == len(declared):
            name = ".".join(filter(None, (declared[0].name, refused[0].part)))
            self.note(name, refused[0].problem, refused[0].remedy)

    def _read_inside(self, key: Key[Any], value: Any) -> Any:
        """Returns the *value* of *key*; of a table its values, whose mistakes are noted here."""
        if key.inner is None:
            return value
        at = _place(self.at, key.name)
        if key.is_list:
            tables = [key.inner.read(self.file, f"{at}[{n}]", table) for n, table in enumerate(value, start=1)]
        else:
            tables = [key.inner.read(self.file, at, value)]
        for table in tables:
            self.mistakes += table.mistakes
        return tables if key.is_list else tables[0]

    def read_default(self, key: Key[Any], example: str) -> None:
        """Reads what counts without *key*; *example* is a right value of it."""
        if key.is_required:
            self.note(key.name, "is missing", f"write {key.name} = {example}")
        else:
            self._values[key.name] = key.default_value

    def require(self, key: Key[Any], pair: Sequence[Key[Any]]) -> None:
        """Notes that *key* is missing, of a *pair* of which a table has both or none."""
        # A misspelt key has no value, and a mistake of its own.
        if key.name in self._values:
            del self._values[key.name]
            both = " and ".join(names_in(pair))
            self.note(key.name, "is missing", f"write {key.name} = {key.example}, or leave out both {both}")

    def note(self, key: str, problem: str, remedy: str) -> None:
        """Notes a mistake of *key*."""
        self.mistakes.append(InvalidSpec.at(self.file, _place(self.at, key), problem, remedy))


def _place(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


@dataclass(frozen=True, kw_only=True)
class TableKind:
    """Tables that *key* tells from others, and the *keys* that they have beside those of every kind.

    Attributes:
        name: its word in pages and messages.
        key: the name of the key that decides.
        word: its value; None: a table that has the key is of this kind.
        is_usual: a table without the key is of this kind, too.
        implied_by: the name of a key by which a table without *key* is of this kind, too.
        refused: by name of a key of others, or of every kind, that it does not have: the problem and the remedy.
    """

    name: str
    key: str
    word: str | None
    keys: tuple[Key[Any], ...]
    is_usual: bool = False
    implied_by: str | None = None
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)

    def has(self, table: Mapping[str, Any]) -> bool:
        """Returns True if *table* is of this kind, unless it is of one before."""
        if self.key not in table:
            return self.is_usual or self.implied_by in table
        return self.word is None or table[self.key] == self.word

    @property
    def condition(self) -> Form:
        """The JSON Schema of its tables."""
        present: Form = {"required": [self.key]}
        if self.word is None:
            return present
        of_word: Form = {"properties": {self.key: {"const": self.word}}}
        if self.is_usual:
            return of_word
        implied: list[Form] = [{"required": [self.implied_by], "not": present}] if self.implied_by else []
        return {"anyOf": [{**of_word, **present}, *implied]}


@dataclass(frozen=True, kw_only=True)
class TableForm:
    """The keys that a table may have.

    Attributes:
        keys: those of every kind.
        kinds: of tables; one is of the first that has it. Empty: there are none.
        together: pairs of keys of which a table has both, or none.
        rules: refuse what follows from several keys.
    """

    keys: tuple[Key[Any], ...]
    kinds: tuple[TableKind, ...] = ()
    together: tuple[tuple[Key[Any], Key[Any]], ...] = ()
    rules: tuple[Callable[[Values], object], ...] = ()

    def kind_of(self, table: Mapping[str, Any]) -> TableKind | None:
        """Returns the kind of *table*; None: it has none."""
        return next((kind for kind in self.kinds if kind.has(table)), None)

    def keys_of(self, kind: TableKind | None) -> tuple[Key[Any], ...]:
        """Returns the keys that tables of *kind* may have; None: those of every kind."""
        if kind is None:
            return self.keys
        return (*(key for key in self.keys if key.name not in kind.refused), *kind.keys)

    def _known(self, kind: TableKind | None) -> dict[str, list[Key[Any]]]:
        """Returns the keys that a table of *kind* may have, by name; None: those of all kinds may share one."""
        possible = () if kind else chain(*(each.keys for each in self.kinds))
        known: dict[str, list[Key[Any]]] = {}
        for key in dict.fromkeys((*self.keys_of(kind), *possible)):
            known.setdefault(key.name, []).append(key)
        return known

    def read(self, file: str, at: str, table: object, *, examples: Mapping[str, str] | None = None) -> Values:
        """Reads the *table* at *at* of *file*: its values, and every mistake in it.

        Where its kind is wrong, it may have the keys of any kind, with a value that one of them accepts. *examples* are
        better ones for keys that are missing, by name, in TOML.
        """
        values = Values(file, at)
        if not isinstance(table, dict):
            values.mistakes.append(InvalidSpec.at(file, at, f"is {table!r}", f"write a table [{at}]"))
            return values
        values.kind, values.written = self.kind_of(table), table
        known = self._known(values.kind)
        for name, value in table.items():
            if name in known:
                values.read(known[name], value)
            else:
                values.note(name, *self._refusal(name, known, values.kind))
        unknown = [name for name in table if name not in known and not self._kinds_with(name)]
        misspelt = {near for name in unknown for near in difflib.get_close_matches(name, known, n=1)}
        for key in self.keys_of(values.kind):
            # A misspelt key has a mistake of its own, which explains the missing one.
            if key.name not in table and key.name not in misspelt:
                values.read_default(key, (examples or {}).get(key.name, key.example))
        for pair in self.together:
            missing = [key for key in pair if key.name not in table]
            if len(missing) == 1:
                values.require(missing[0], pair)
        values.judge(*self.rules)
        return values

    def _refusal(self, name: str, known: Collection[str], kind: TableKind | None) -> tuple[str, str]:
        """Returns the problem and the remedy of a key that is not *known* in a table of *kind*."""
        if kind and name in kind.refused:
            return kind.refused[name]
        others = self._kinds_with(name)
        if kind is None or not others:
            return "is not a valid key here", suggestion_of(name, known, "keys")
        problem = f"is set, but {kind.key} is {kind.name!r}" if kind.word else f"is set together with {kind.key}"
        return problem, f"leave it out, or choose {others[0].key} {', '.join(names_in(others))}"

    def _kinds_with(self, name: str) -> list[TableKind]:
        """Returns the kinds that have a key *name* of their own."""
        return [kind for kind in self.kinds if name in names_in(kind.keys)]

    @property
    def schema(self) -> Form:
        """The JSON Schema of tables."""
        if not self.kinds:
            return self._schema_of(self.keys)
        # What is of no kind has a wrong word, and may have the keys of any.
        form: Form = {**self._schema_of(self.keys), "additionalProperties": True}
        for kind in reversed(self.kinds):
            form = {"if": kind.condition, "then": self._schema_of(self.keys_of(kind)), "else": form}
        return {"type": "object", **form}

    def _schema_of(self, keys: Sequence[Key[Any]]) -> Form:
        """Returns the JSON Schema of tables that may have these *keys*."""
        needs = {one.name: [other.name] for pair in self.together for one, other in (pair, pair[::-1])}
        return {
            "type": "object",
            "properties": {key.name: key.schema for key in keys},
            "required": [key.name for key in keys if key.is_required],
            **({"dependentRequired": needs} if needs else {}),
            "additionalProperties": False,
        }


def refuse_mistakes(tables: Iterable[Values]) -> None:
    """Raises InvalidSpec with a line for each mistake of *tables*, if there is one."""
    if mistakes := [str(mistake) for table in tables for mistake in table.mistakes]:
        raise InvalidSpec("\n".join(mistakes))
