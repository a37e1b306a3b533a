"""Derives JSON Schemas of files from the declarations of their keys.

Topologies, SLAs, channels and connections are declared as data (settings/declared_tables.py). Spark's settings are not:
there the parser itself reads small files, in which each key that it asks for is written with its example, and with each
of its words, until none shows a new key. So a new key is in the schema without a second place. A schema does not
compare values of several keys, or names with other tables: `tidemark check` does.
"""

from __future__ import annotations

import re
import tomllib
from collections import defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple

from tidemark.errors import InvalidSpec
from tidemark.model import topology_keys
from tidemark.model.project import connections, registries
from tidemark.model.project.spark_settings import read_spark
from tidemark.model.settings.declared_tables import Key
from tidemark.model.settings.toml_keys import ASKING, Declaration, Keys, Reading, observed
from tidemark.model.settings.value_types import IDENTIFIER, Form
from tidemark.model.slas import channel_spec, sla_keys, sla_spec
from tidemark.model.toml_operators import operator_form
from tidemark.model.topology_keys import OPERATORS, SPARK

DIALECT = "https://json-schema.org/draft/2020-12/schema"
NAME = "example"
"""Name of the topology, operator, SLA or channel that is tried."""
MOST_CORRECTIONS = 30
"""A file is corrected so often before it is given up."""
Content = dict[str, Any]


class Trial(NamedTuple):
    """Holds one table as the parser read it in one file.

    It is whole if that file has no mistake: then the parser asked for all keys.
    """

    content: Mapping[str, Any]
    asked: Mapping[str, Declaration]
    is_whole: bool


Trials = Mapping[str, Sequence[Trial]]
"""The trials of each table, by its dotted place."""


@dataclass(frozen=True)
class KeyCondition:
    """A condition on a table: its *key* has a *word*.

    True and False stand for a key that is present, or not.

    A word that is *usual* is also that of a table without the key.
    """

    key: str
    word: str | bool
    is_usual: bool = False

    def holds(self, trial: Trial) -> bool:
        """Returns True if the table of *trial* fulfils it."""
        if isinstance(self.word, bool):
            return (self.key in trial.content) is self.word
        return self.is_usual if self.key not in trial.content else trial.content[self.key] == self.word

    @property
    def form(self) -> Form:
        """The JSON Schema of tables that fulfil it."""
        present: Form = {"required": [self.key]}
        if isinstance(self.word, bool):
            return present if self.word else {"not": present}
        word: Form = {"properties": {self.key: {"const": self.word}}}
        return word if self.is_usual else {**word, **present}


def schema_of(file: str) -> Form:
    """Returns the JSON Schema of files of one kind.

    It is one of FORMS.
    """
    return {"$schema": DIALECT, "title": f"Tidemark: {file}", **FORMS[file]()}


def _topology_file() -> Form:
    """Returns the form of a file of a topology."""
    form = topology_keys.FORM.schema
    trials = _trials(lambda content: read_spark(NAME, content.get(SPARK.name, {})), [{SPARK.name: {}}])
    spark = _value(trials, SPARK.name, [Declaration(SPARK.example, is_optional=True, form=SPARK.of_type.form)])
    inside = {OPERATORS.name: _tables(operator_form().schema), SPARK.name: spark}
    described = {name: {**form["properties"][name], **tables} for name, tables in inside.items()}
    return {**form, "properties": {**form["properties"], **described, **_connections()}}


def _connections() -> Mapping[str, Form]:
    """Returns the forms of the tables of clusters and registries, by their keys."""
    named = ((connections.KAFKA, connections.CLUSTER), (connections.REGISTRY, registries.FORM))
    return {key.name: {**key.schema, **_tables(form.schema)} for key, form in named}


def _tables(form: Form) -> Form:
    """Returns the form of tables by names."""
    return {"type": "object", "propertyNames": {"pattern": f"^{IDENTIFIER.pattern}$"}, "additionalProperties": form}


def _connection_file() -> Form:
    """Returns the form of a file with the clusters and registries of a project."""
    return {"type": "object", "properties": _connections(), "additionalProperties": False}


def _sla_file() -> Form:
    """Returns the form of a file of SLAs."""
    sla = sla_keys.form().schema
    one = {
        "type": "object",
        "minProperties": 1,
        "properties": {key.name: _table_or(sla, key) for key in sla_spec.OF_TOPOLOGIES},
        "additionalProperties": sla,
        "propertyNames": {"pattern": f"^{IDENTIFIER.pattern}$"},
    }
    of_all = sla_keys.MAINTENANCE
    return {"type": "object", "properties": {of_all.name: _table_or(one, of_all)}, "additionalProperties": one}


def _table_or(table: Form, key: Key[Any]) -> Form:
    """Returns the form of a table of the name of *key*, or of its values."""
    return {"if": {"type": "object"}, "then": table, "else": key.schema}


def _channel_file() -> Form:
    """Returns the form of a file with a table for each channel."""
    names = {"pattern": f"^{IDENTIFIER.pattern}$", "not": {"const": channel_spec.LOG}}
    return {"type": "object", "propertyNames": names, "additionalProperties": channel_spec.FORM.schema}


FORMS: Mapping[str, Callable[[], Form]] = {
    "topology": _topology_file,
    "slas": _sla_file,
    "channels": _channel_file,
    "connections": _connection_file,
}


def _trials(parse: Callable[[Content], object], starts: Iterable[Content]) -> Trials:
    """Parses files until none shows a new key or word."""
    trials: dict[str, dict[str, Trial]] = defaultdict(dict)
    tried: set[str] = set()
    waiting = [*starts]
    while waiting:
        content, tables, is_whole = _corrected(parse, waiting.pop())
        for at, keys in tables.items():
            trial = Trial(keys.content, dict(keys.asked), is_whole)
            # Most files differ in one table alone.
            context = f"{_context(content, at)} {at}"
            if (signature := f"{context} {keys.content} {is_whole}") in trials[at]:
                continue
            trials[at][signature] = trial
            for key, value in _values(keys):
                candidate = f"{context} {key} {value!r}"
                if candidate not in tried:
                    tried.add(candidate)
                    kept = {name: each for name, each in keys.content.items() if name != key}
                    waiting.append(_with(content, at, kept if value is None else {**kept, key: value}))
    return {at: [*each.values()] for at, each in trials.items()}


def _corrected(parse: Callable[[Content], object], content: Content) -> tuple[Content, dict[str, Keys], bool]:
    """Parses *content*, and corrects it by the examples of its mistakes.

    Returns it with the tables that were read, and whether it became valid.
    """
    seen: dict[str, int] = defaultdict(int)
    for _ in range(MOST_CORRECTIONS):
        reading = _read(parse, content)
        tables = _first(reading.tables)
        if not reading.mistakes:
            return content, tables, True
        mistake = reading.mistakes[0]
        seen[str(mistake)] += 1
        at = max((at for at in tables if f"{mistake.key}.".startswith(f"{at}." if at else "")), key=len)
        keys = tables[at]
        place = mistake.key.removeprefix(at).removeprefix(".").split(".")
        corrected = _fitting(keys, place[0], mistake.beside) if seen[str(mistake)] == 1 else None
        corrected = corrected or keys.without(place, again=seen[str(mistake)] > 1)
        if corrected is None or corrected == keys.content:
            break
        content = _with(content, at, corrected)
    return content, tables, False


def _fitting(keys: Keys, key: str, beside: Collection[str]) -> Content | None:
    """Returns the table with the keys that *key* needs.

    Or without those that it excludes.

    None if no other key is *beside*.
    """
    if key not in keys.content or key not in keys.asked:
        return None
    if excluded := {*beside} & {*keys.content}:
        return {name: value for name, value in keys.content.items() if name not in excluded}
    examples = [f"{name} = {keys.asked[name].example}" for name in beside if name in keys.asked]
    return {**keys.content, **tomllib.loads("\n".join(examples))} if examples else None


def _first(tables: Iterable[Keys]) -> dict[str, Keys]:
    """Returns the first content of each table, as it was read furthest."""
    # The parser itself corrects a table with a mistake, and reads it again.
    first: dict[str, Keys] = {}
    for keys in tables:
        other = first.setdefault(keys.at, keys)
        if keys.content == other.content and len(keys.asked) > len(other.asked):
            first[keys.at] = keys
    return first


def _read(parse: Callable[[Content], object], content: Content) -> Reading:
    with observed() as reading, suppress(InvalidSpec):
        parse(content)
    return reading


def _values(keys: Keys) -> Iterator[tuple[str, Any]]:
    """Yields each key with values that it may have.

    None stands for a table without the key.
    """
    for key, declared in keys.asked.items():
        if declared.is_optional and key in keys.content:
            yield key, None
        if "enum" in declared.form:
            yield from ((key, word) for word in declared.form["enum"])
        else:
            with suppress(tomllib.TOMLDecodeError):
                yield key, tomllib.loads(f"value = {declared.example}")["value"]


def _steps(at: str) -> list[str | int]:
    """Returns the keys and places of lists up to *at*.

    >>> _steps("a.hours[0]")
    ['a', 'hours', 0]
    """
    return [int(word) if word.isdecimal() else word for word in re.findall(r"[^.\[\]]+", at)]


def _with(content: Any, at: str, table: Content) -> Any:
    """Returns a copy of *content* with *table* at the dotted place *at*."""

    def within(part: Any, steps: list[str | int]) -> Any:
        if not steps:
            return table
        step, *rest = steps
        if isinstance(step, int):
            return [*part[:step], within(part[step], rest), *part[step + 1 :]]
        return {**part, step: within(part.get(step, {}), rest)}

    return within(content, _steps(at))


def _context(content: Any, at: str) -> list[Any]:
    """Returns the words that decide which keys are in the table *at*.

    They are in it, or in one around it.
    """
    words = []
    for step in _steps(at):
        content = content[step] if isinstance(step, int) or step in content else {}
        if isinstance(content, dict):
            words += [content.get(key) for key in ASKING]
    return words


def _table(trials: Trials, at: str) -> Form:
    """Returns the form of the table at the dotted place *at*."""
    own = trials[at]
    declared: dict[str, list[Declaration]] = defaultdict(list)
    for trial in own:
        for key, each in trial.asked.items():
            if each.form not in [other.form for other in declared[key]]:
                declared[key].append(each)
    maps = [_table(trials, below) for below in _below(trials, at) if _key(below, at) not in declared]
    form: Content = {
        "type": "object",
        "properties": {key: _value(trials, f"{at}.{key}".removeprefix("."), each) for key, each in declared.items()},
        "additionalProperties": maps[0] if maps else False,
    }
    whole = [trial for trial in own if trial.is_whole]
    conditions = {}
    for condition in _conditions(whole):
        conditions[condition] = {number for number, trial in enumerate(whole) if condition.holds(trial)}
    rules: list[Form] = []
    for key in declared:
        unknown = [key not in trial.asked for trial in whole]
        if not all(unknown):
            rules += _rule(conditions, [key], unknown, {"not": {"required": [key]}})
        required = [key in trial.asked and not trial.asked[key].is_optional for trial in whole]
        rules += _rule(conditions, [key], required, {"required": [key]})
    return {**form, "allOf": rules} if rules else form


def _rule(
    conditions: Mapping[KeyCondition, set[int]], keys: Collection[str], holds: Sequence[bool], consequence: Form
) -> Iterator[Form]:
    """Yields the *consequence* for *keys*, with its conditions.

    It *holds* in some trials.

    A condition is used if such trials alone fulfil it; *conditions* have the numbers of the trials that do.
    """
    if not any(holds):
        return
    if all(holds):
        yield consequence
        return
    left = {number for number, each in enumerate(holds) if each}
    true = {each: numbers for each, numbers in conditions.items() if numbers <= left and each.key not in keys}
    chosen: list[Form] = []
    # Which keys exist is decided by words more often than by the presence of another key.
    for condition in sorted(true, key=lambda each: (not isinstance(each.word, str), -len(true[each]))):
        if true[condition] & left:
            chosen.append(condition.form)
            left -= true[condition]
    if chosen:
        yield {"if": {"anyOf": chosen}, "then": consequence}


def _conditions(whole: Sequence[Trial]) -> Iterator[KeyCondition]:
    defaults: dict[str, set[Any]] = defaultdict(set)
    words: dict[str, Sequence[str]] = {}
    for trial in whole:
        for key, each in trial.asked.items():
            if "enum" in each.form:
                words[key] = each.form["enum"]
                defaults[key].add(each.default)
            words.setdefault(key, ())
    for key in words:
        yield KeyCondition(key, word=True)
        yield from (KeyCondition(key, word, defaults[key] == {word}) for word in words[key])
        if words[key]:
            yield KeyCondition(key, word=False)


def _below(trials: Trials, at: str) -> list[str]:
    """Returns the places of tables that are directly in the table *at*."""
    prefix = f"{at}." if at else ""
    return [place for place in trials if place.startswith(prefix) and place != at]


def _key(below: str, at: str) -> str:
    return str(_steps(below.removeprefix(at))[0])


def _value(trials: Trials, at: str, declared: Sequence[Declaration]) -> Form:
    """Returns the form of values of the key at *at*."""
    form: Form = declared[0].form if len(declared) == 1 else {"anyOf": [each.form for each in declared]}
    if f"{at}[0]" in trials:
        form = {"type": "array", "items": _table(trials, f"{at}[0]")}
    elif any(trial.asked for trial in trials.get(at, ())):
        form = _table(trials, at)
    elif named := [place for place in trials if place.rpartition(".")[0] == at]:
        names = {"pattern": f"^{IDENTIFIER.pattern}$"}
        form = {"type": "object", "propertyNames": names, "additionalProperties": _table(trials, named[0])}
    with suppress(tomllib.TOMLDecodeError):
        return {**form, "examples": [tomllib.loads(f"value = {declared[0].example}")["value"]]}
    return form
