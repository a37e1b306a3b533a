"""Declares once which keys a table of a file may have.

The parser, the JSON Schema, the reference page and the template of `tidemark init` follow from the declarations. All
mistakes of single keys are told at once. Two relations between keys are declared as well: a key that needs another one
(settings/conditions.py), and a group of keys of which a table has exactly one. A check of any other relation is a
*rule*, a function that is called unless one of its keys has a mistake.
"""

from __future__ import annotations

import difflib
import json
import tomllib
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Generic, NoReturn, TypeVar

from tidemark.errors import InvalidSpec
from tidemark.model.settings import value_types
from tidemark.model.settings.conditions import Needs
from tidemark.model.settings.value_types import Form, UnfitValue, ValueType, seen, suggestion_of
from tidemark.selection import names_in, omit, outside

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)


@dataclass(frozen=True, kw_only=True, eq=False)
class Key(Generic[T_co]):
    """A key of a table.

    Attributes:
        name: what the file calls it.
        of_type: the type of its values.
        example: a valid value, in TOML.
        meaning: what the key does, for people, in Markdown.
        is_required: a table must have the key.
        default: the value that counts in a table without the key, as a file would have it; None if there is none.
        without: what a table without the key means, for people, if *default* does not say it.
        inner: the keys of a value that is a table itself, and is read as Values; None for other values.
        needs: other keys without which this key means nothing, so that it is refused.
        required_if: the condition under which a table must have the key; None if there is no such condition.
        is_list: the value is a list of tables with the keys *inner*.
    """

    name: str
    of_type: ValueType[Any]
    example: str
    meaning: str
    is_required: bool = False
    default: object = None
    without: str = "none"
    inner: TableForm | None = None
    needs: tuple[Needs, ...] = ()
    required_if: Needs | None = None
    is_list: bool = False

    def read(self, value: object) -> T_co:
        """Converts the *value* of this key in a file to the value that Tidemark uses.

        Raises UnfitValue if *value* is not of the key's type.
        """
        read: T_co = self.of_type.read(value, self.name, self.example)
        return read

    @property
    def default_value(self) -> T_co:
        """The value that Tidemark uses for a table without the key."""
        nothing: Any = None
        return nothing if self.default is None else self.read(self.default)

    @property
    def example_value(self) -> object:
        """The example, parsed from TOML."""
        return tomllib.loads(f"value = {self.example}")["value"]

    @property
    def default_text(self) -> str | None:
        """The default as text of a file; None without a default."""
        return None if self.default is None else json.dumps(self.default)

    @property
    def schema(self) -> Form:
        """The JSON Schema of its values."""
        form = self.inner.schema if self.inner else self.of_type.form
        form = {"type": "array", "items": form} if self.is_list else form
        usual = {} if self.default is None else {"default": self.default}
        return {**form, "description": self.meaning, **usual, "examples": [self.example_value]}


def required(name: str, of_type: ValueType[T], *, example: str, meaning: str) -> Key[T]:
    """Declares a key that every table has. The arguments of these functions are attributes of `Key`."""
    return Key(name=name, of_type=of_type, example=example, meaning=meaning, is_required=True)


def optional(
    name: str,
    of_type: ValueType[T],
    *,
    example: str,
    meaning: str,
    without: str = "none",
    needs: Iterable[Needs] = (),
    required_if: Needs | None = None,
) -> Key[T | None]:
    """Declares a key whose value is None in a table that does not have it."""
    return Key(
        name=name,
        of_type=of_type,
        example=example,
        meaning=meaning,
        without=without,
        needs=tuple(needs),
        required_if=required_if,
    )


def defaulted(
    name: str, of_type: ValueType[T], *, example: str, meaning: str, default: object, needs: Iterable[Needs] = ()
) -> Key[T]:
    """Declares a key with a *default*, which is written as in a file."""
    return Key(name=name, of_type=of_type, example=example, meaning=meaning, default=default, needs=tuple(needs))


def inner_table(
    name: str, form: TableForm, *, example: str, meaning: str, without: str = "none", needs: Iterable[Needs] = ()
) -> Key[Values | None]:
    """Declares a key whose value is a table with the keys of *form*."""
    of_type = value_types.plain(dict)
    return Key(
        name=name, of_type=of_type, example=example, meaning=meaning, without=without, inner=form, needs=tuple(needs)
    )


def inner_tables(name: str, form: TableForm, *, example: str, meaning: str) -> Key[Sequence[Values]]:
    """Declares a key whose value is a list of tables with the keys of *form*; by default it is empty."""
    of_type = value_types.plain(list)
    return Key(name=name, of_type=of_type, example=example, meaning=meaning, default=[], inner=form, is_list=True)


class MistakenKey(Exception):
    """Raised when a rule asks for the value of a key that has a mistake: the rule is then not judged."""


class Values:
    """The values of one table of *file*, and the *mistakes* that were found in it.

    *at* is the path of the table with dots, or "" for the whole file. *written* is the table as parsed from TOML, and
    *kind* its kind, or None. The files that it names lie in *folder*.
    """

    def __init__(self, file: str, at: str, *, folder: Path | None = None) -> None:
        self.file, self.at, self.folder = file, at, folder
        self.mistakes: list[InvalidSpec] = []
        self.kind: TableKind | None = None
        self.written: Mapping[str, Any] = {}
        self._values: dict[str, Any] = {}
        self._in_part: dict[str, Any] = {}
        # Keys with a mistake: what they should have been is not known, so nothing else is said about them.
        self._open: set[str] = set()

    def __getitem__(self, key: Key[T]) -> T:
        """Returns the value of *key*.

        Raises MistakenKey if the key has a mistake.
        """
        if key.name not in self._values:
            raise MistakenKey(key.name)
        value: T = self._values[key.name]
        return value

    def get(self, key: Key[T | None], otherwise: T) -> T:
        """Returns the value of *key*, or *otherwise* if that is None; raises as `values[key]`."""
        value = self[key]
        return otherwise if value is None else value

    def has(self, key: Key[Any]) -> bool:
        """Returns True if *key* is written in the file."""
        return key.name in self.written

    def repaired(self, form: TableForm) -> Values:
        """Returns these values with valid ones in place of mistakes, so that further mistakes can be found.

        A mistaken optional key counts as left out, and a required one as its example. If only parts of an inner table
        are wrong, the others are kept. *form* is the form of the table.
        """
        repaired = Values(self.file, self.at, folder=self.folder)
        repaired.kind, repaired.written = self.kind, self.written
        for key in form.keys_of(self.kind):
            if key.name in self._values:
                repaired._values[key.name] = self._values[key.name]
            elif key.name in self._in_part:
                repaired._values[key.name] = self._in_part[key.name]
            elif self._is_required(key):
                repaired.read([key], key.example_value)
            else:
                repaired._values[key.name] = key.default_value
        for group in form.groups_of(self.kind):
            if all(repaired[key] is None for key in group):
                chosen = next(filter(self.has, group), group[0])
                repaired.read([chosen], chosen.example_value)
        return repaired

    def _is_required(self, key: Key[Any]) -> bool:
        if key.required_if is None:
            return key.is_required
        return key.required_if.unmet_in(self.written) is None

    def fail(self, key: Key[Any], problem: str, remedy: str) -> NoReturn:
        """Raises InvalidSpec about *key*. Rules call this."""
        raise InvalidSpec.at(self.file, _place(self.at, key.name), problem, remedy)

    def judge(self, *rules: Callable[[Values], object]) -> None:
        """Notes what *rules* refuse. A rule compares several keys, or looks at files.

        Once a rule has refused a key, later rules that ask for this key are not judged.
        """
        for rule in rules:
            try:
                rule(self)
            except InvalidSpec as mistake:
                self.mistakes.append(mistake)
                self._open_key(mistake.key.removeprefix(f"{self.at}."))
            except MistakenKey:
                continue

    def judge_group(self, group: Sequence[Key[Any]], misspelt: Collection[str]) -> None:
        """Notes a mistake unless the table has exactly one of the keys of *group*.

        Nothing is noted if the table has none, and one of the group is among the *misspelt* keys.
        """
        names = names_in(group)
        written = [key.name for key in group if self.has(key)]
        if not written:
            self._open.update(names)
        if len(written) == 1 or (not written and not {*names}.isdisjoint(misspelt)):
            return
        choices = " or ".join(f"{key.name} = {key.example}" for key in group)
        problem = f"is set together with {written[1]}" if written else "is missing"
        self.note((written or names)[0], problem, f"write exactly one of {choices}")

    def judge_needs(self, keys: Iterable[Key[Any]], misspelt: Collection[str]) -> None:
        """Notes which of *keys* lack a key that they need, and which are missing although others require them.

        Nothing is noted if one of the keys concerned has a mistake, or is among the *misspelt* keys.
        """
        is_open = frozenset(self._open.union(misspelt))
        for key in keys:
            if key.name in is_open:
                continue
            # What is false has no effect, with or without another key.
            if self.written.get(key.name) is False:
                continue
            if self.has(key):
                self._judge_needs_of(key, is_open)
            elif (what := key.required_if) and not what.names & is_open and what.unmet_in(self.written) is None:
                because = f": {what.because}" if what.because else ""
                problem = f"is missing, and {what.conditions[0].as_seen(self.written)}"
                self.note(key.name, problem, f"write {key.name} = {key.example}{because}")

    def _judge_needs_of(self, key: Key[Any], is_open: frozenset[str]) -> None:
        for need in key.needs:
            if need.names & is_open or (unmet := need.unmet_in(self.written)) is None:
                continue
            others = f", or write {unmet.remedy}" if unmet.remedy else ""
            remedy = f"leave it out: {need.because}" if need.because else f"leave it out{others}"
            value = self.written[key.name]
            shown = str(value).lower() if isinstance(value, bool) else repr(value)
            self.note(key.name, f"is {shown}, but {unmet.as_seen(self.written)}", remedy)
            return

    def read(self, declared: Sequence[Key[Any]], value: object) -> None:
        """Reads *value* as one of the *declared* keys, which have the same name; notes a mistake if it fits none."""
        refused = []
        for key in declared:
            try:
                self._set(key, key.read(value))
            except UnfitValue as unfit:
                refused.append(unfit)
        if len(refused) == len(declared):
            self._refuse(declared[0], value, refused[0])

    def _refuse(self, key: Key[Any], value: object, unfit: UnfitValue) -> None:
        """Notes what is wrong with the *value* of *key*, and keeps the parts of it that are right."""
        self.note(".".join(filter(None, (key.name, unfit.part))), unfit.problem, unfit.remedy)
        if not isinstance(value, dict) or unfit.part not in value or len(value) == 1:
            return
        rest = omit(value, [unfit.part])
        try:
            self._in_part[key.name] = key.read(rest)
        except UnfitValue as other:
            self._refuse(key, rest, other)

    def _set(self, key: Key[Any], value: Any) -> None:
        """Sets the value of *key*. If it is a table, or a list of tables, these are read, and their mistakes noted."""
        if key.inner is None:
            self._values[key.name] = value
            return
        at = _place(self.at, key.name)
        places = [(f"{at}[{n}]", table) for n, table in enumerate(value, start=1)] if key.is_list else [(at, value)]
        inside = [key.inner.read(self.file, place, table, folder=self.folder) for place, table in places]
        if any(each.mistakes for each in inside):
            self.mistakes += [mistake for each in inside for mistake in each.mistakes]
            self._open.add(key.name)
            self._in_part[key.name] = _one_or_all(key, [each.repaired(key.inner) for each in inside])
        else:
            self._values[key.name] = _one_or_all(key, inside)

    def read_default(self, key: Key[Any], example: str) -> None:
        """Gives *key*, which is not in the table, its default, or notes that it is missing.

        *example* is a valid value for the message.
        """
        if key.is_required:
            self.note(key.name, "is missing", f"write {key.name} = {example}")
        else:
            self._values[key.name] = key.default_value

    def require(self, key: Key[Any], pair: Sequence[Key[Any]]) -> None:
        """Notes that *key* is missing although the table has the other key of *pair*."""
        # A misspelt key has no value, and a mistake of its own.
        if key.name in self._values:
            both = " and ".join(names_in(pair))
            self.note(key.name, "is missing", f"write {key.name} = {key.example}, or leave out both {both}")

    def note(self, key: str, problem: str, remedy: str) -> None:
        """Notes a mistake of *key*, the name of a key or, behind a dot, of a part of its value."""
        self._open_key(key)
        self.mistakes.append(InvalidSpec.at(self.file, _place(self.at, key), problem, remedy))

    def _open_key(self, key: str) -> None:
        """Forgets the value of the key that *key* names, perhaps with a part behind a dot: it has a mistake."""
        name = key.partition(".")[0]
        self._values.pop(name, None)
        self._open.add(name)


def _one_or_all(key: Key[Any], tables: list[Values]) -> Values | list[Values]:
    """Returns *tables* as the value of *key*: all of them if its value is a list, and otherwise the only one."""
    return tables if key.is_list else tables[0]


def _place(at: str, key: str) -> str:
    return f"{at}.{key}" if at else key


@dataclass(frozen=True, kw_only=True)
class TableKind:
    """One kind of tables, which have the value *word* in the key *key*, and the keys that only this kind has.

    Attributes:
        name: what pages and messages call it.
        key: the name of the key that decides.
        word: the value of that key; None if each table that has the key is of this kind.
        keys: the keys of its tables, beside those of every kind.
        is_usual: a table without *key* is of this kind, too.
        implied_by: the name of another key: a table that has it, and not *key*, is of this kind, too.
        refused: keys of other kinds, or of every kind, that its tables must not have; by name, the problem and the
            remedy.
        one_of: groups of keys of which its tables have exactly one.
        rules: refuse what follows from several of its keys.
    """

    name: str
    key: str
    word: str | None
    keys: tuple[Key[Any], ...]
    is_usual: bool = False
    implied_by: str | None = None
    refused: Mapping[str, tuple[str, str]] = field(default_factory=dict)
    one_of: tuple[tuple[Key[Any], ...], ...] = ()
    rules: tuple[Callable[[Values], object], ...] = ()

    def has(self, table: Mapping[str, Any]) -> bool:
        """Returns True if *table* is of this kind, provided that no kind before this one has it."""
        if self.key not in table:
            return self.is_usual or self.implied_by in table
        return self.word is None or table[self.key] == self.word

    @property
    def condition(self) -> Form:
        """The JSON Schema that tables of this kind fulfil, and others do not."""
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
        keys: the keys that tables of every kind may have.
        kinds: the kinds of tables; a table is of the first that has it. Empty if there is only one kind.
        together: pairs of keys of which a table has both, or none.
        one_of: groups of keys of which a table has exactly one.
        rules: refuse what follows from several keys.
    """

    keys: tuple[Key[Any], ...]
    kinds: tuple[TableKind, ...] = ()
    together: tuple[tuple[Key[Any], Key[Any]], ...] = ()
    one_of: tuple[tuple[Key[Any], ...], ...] = ()
    rules: tuple[Callable[[Values], object], ...] = ()

    def kind_of(self, table: Mapping[str, Any]) -> TableKind | None:
        """Returns the kind of *table*; None if it is of no kind, or if a misspelt key may be the one that decides."""
        every_name = names_in(chain(self.keys, *(kind.keys for kind in self.kinds)))
        deciding = {name for kind in self.kinds for name in (kind.key, kind.implied_by)} - {*table}
        for name in outside(table, every_name):
            if deciding.intersection(difflib.get_close_matches(name, every_name, n=1)):
                return None
        return next((kind for kind in self.kinds if kind.has(table)), None)

    def keys_of(self, kind: TableKind | None) -> tuple[Key[Any], ...]:
        """Returns the keys that tables of *kind* may have; for None, those of every kind."""
        if kind is None:
            return self.keys
        return (*(key for key in self.keys if key.name not in kind.refused), *kind.keys)

    @property
    def kinds_by_key(self) -> Mapping[Key[Any], Sequence[TableKind]]:
        """By key that not every kind has, the kinds that have it."""
        kinds: dict[Key[Any], list[TableKind]] = {}
        for kind in self.kinds:
            for key in kind.keys:
                kinds.setdefault(key, []).append(kind)
        return kinds

    def _known(self, kind: TableKind | None) -> dict[str, list[Key[Any]]]:
        """Returns the keys that a table of *kind* may have, by name.

        If *kind* is None, these are the keys of all kinds, of which several may have the same name.
        """
        possible = () if kind else chain(*(each.keys for each in self.kinds))
        known: dict[str, list[Key[Any]]] = {}
        for key in dict.fromkeys((*self.keys_of(kind), *possible)):
            known.setdefault(key.name, []).append(key)
        return known

    def groups_of(self, kind: TableKind | None) -> tuple[tuple[Key[Any], ...], ...]:
        """Returns the groups of keys of which tables of *kind* have exactly one."""
        return (*self.one_of, *(kind.one_of if kind else ()))

    def read(
        self,
        file: str,
        at: str,
        table: object,
        *,
        examples: Mapping[str, str] | None = None,
        folder: Path | None = None,
    ) -> Values:
        """Reads the *table* at *at* of *file*: its values, and every mistake in it.

        Where its kind is wrong, it may have the keys of any kind, with a value that one of them accepts. *examples* are
        better ones for keys that are missing, by name, in TOML. Files that it names lie in *folder*.
        """
        values = Values(file, at, folder=folder)
        if not isinstance(table, Mapping):
            values.mistakes.append(InvalidSpec.at(file, at, f"is {seen(table)}", f"write a table [{at}]"))
            return values
        values.kind, values.written = self.kind_of(table), table
        known = self._known(values.kind)
        misspelt: set[str] = set()
        for name, value in table.items():
            if name in known:
                values.read(known[name], value)
            else:
                near = _nearest(name, known, table)
                # A key of another kind may be meant: it only explains why a required one is missing.
                is_of_others = bool(self._kinds_with(name))
                misspelt.update(key for key in near if not is_of_others or _any_required(known[key]))
                values.note(name, *self._refusal(name, near, known, values.kind))
        keys = self.keys_of(values.kind)
        for key in keys:
            # A misspelt key has a mistake of its own, which explains the missing one.
            if key.name not in table and key.name not in misspelt:
                values.read_default(key, (examples or {}).get(key.name, key.example))
        for group in self.groups_of(values.kind):
            values.judge_group(group, misspelt)
        for pair in self.together:
            missing = [key for key in pair if key.name not in table]
            if len(missing) == 1:
                values.require(missing[0], pair)
        values.judge_needs(keys, misspelt)
        values.judge(*self.rules, *(values.kind.rules if values.kind else ()))
        return values

    def _refusal(
        self, name: str, near: Collection[str], known: Collection[str], kind: TableKind | None
    ) -> tuple[str, str]:
        """Returns the problem and the remedy of a key that is not *known* in a table of *kind*, which lacks *near*."""
        if kind and name in kind.refused:
            return kind.refused[name]
        others = self._kinds_with(name)
        if kind is None or not others:
            return "is not a valid key here", suggestion_of(name, known, "keys")
        problem = f"is set, but {kind.key} is {kind.name!r}" if kind.word else f"is set together with {kind.key}"
        choice = f"choose {others[0].key} {', '.join(names_in(others))}"
        if near:
            return problem, f"did you mean {next(iter(near))}? or {choice}"
        return problem, f"leave it out, or {choice}"

    def _kinds_with(self, name: str) -> list[TableKind]:
        """Returns the kinds that have a key *name* of their own."""
        return [kind for kind in self.kinds if name in names_in(kind.keys)]

    @property
    def schema(self) -> Form:
        """The JSON Schema of tables."""
        if not self.kinds:
            return self._schema_of(None)
        # What is of no kind has a wrong word, and may have the keys of any.
        form: Form = {**self._schema_of(None), "additionalProperties": True}
        for kind in reversed(self.kinds):
            form = {"if": kind.condition, "then": self._schema_of(kind), "else": form}
        return {"type": "object", **form}

    def _schema_of(self, kind: TableKind | None) -> Form:
        """Returns the JSON Schema of tables of *kind*; for None, of tables of no kind."""
        keys = self.keys_of(kind)
        both = {one.name: [other.name] for pair in self.together for one, other in (pair, pair[::-1])}
        needed = {key.name: _unless_false(key, [need.form for need in key.needs]) for key in keys if key.needs}
        conditions: list[Form] = []
        for group in self.groups_of(kind):
            conditions.append({"oneOf": [{"required": [key.name]} for key in group]})
        for key in keys:
            if key.required_if:
                conditions.append({"if": key.required_if.form, "then": {"required": [key.name]}})
        return {
            "type": "object",
            "properties": {key.name: key.schema for key in keys},
            "required": [key.name for key in keys if key.is_required],
            **({"dependentRequired": both} if both else {}),
            **({"dependentSchemas": needed} if needed else {}),
            **({"allOf": conditions} if conditions else {}),
            "additionalProperties": False,
        }


def _unless_false(key: Key[Any], forms: Sequence[Form]) -> Form:
    """Returns the JSON Schema of tables of all *forms*, or in which *key* is false."""
    if bool not in key.of_type.types:
        return {"allOf": forms}
    return {"if": {"properties": {key.name: {"const": True}}}, "then": {"allOf": forms}}


def _any_required(keys: Iterable[Key[Any]]) -> bool:
    return any(key.is_required for key in keys)


def _nearest(name: str, known: Collection[str], table: Collection[str]) -> list[str]:
    """Returns the *known* key that *name* is meant to be, unless the *table* has it."""
    return [near for near in difflib.get_close_matches(name, known, n=1) if near not in table]


def refuse_mistakes(tables: Iterable[Values]) -> None:
    """Raises InvalidSpec with a line for each mistake of *tables*, if there is one."""
    if mistakes := [str(mistake) for table in tables for mistake in table.mistakes]:
        raise InvalidSpec("\n".join(mistakes))
