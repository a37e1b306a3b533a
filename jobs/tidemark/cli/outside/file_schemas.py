"""Derives JSON Schemas of files from the declarations of their keys.

Channels and tests are declared as data (settings/declared_tables.py). Topologies and SLAs are not: there the parser
itself reads small files, in which each key that it asks for is written with its example, and with each of its words,
until none shows a new key. So a new key is in the schema without a second place. A schema does not compare values of
several keys, or names with other tables: `tidemark check` does.
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
from tidemark.model import topology, topology_tests
from tidemark.model.kinds.registry import KINDS
from tidemark.model.settings.toml_keys import ASKING, Declaration, Keys, Reading, observed
from tidemark.model.settings.value_types import IDENTIFIER, Form
from tidemark.model.slas import channel_spec, sla_spec

DIALECT = "https://json-schema.org/draft/2020-12/schema"
KIND = "kind"
"""The key whose word decides the form of others."""
NAME = "example"
"""Name of the topology, operator, SLA or channel that is tried."""
MOST_CORRECTIONS = 30
"""A file is corrected so often before it is given up."""
EXAMPLE = """
name = "example"
[operators.events]
kind = "source"
topic = "events"
fields = "id string, event_time bigint"
timestamp = "event_time"
bound = "3 s"
[operators.per_id]
kind = "aggregate"
input = "events"
key = ["id"]
aggregates = { n = "count(*)" }
window = { tumbling = "1 min" }
complete = { every = "1 h" }
[operators.alarms]
kind = "sink"
input = "per_id"
table = "alarms"
"""
"""A topology that has a subject of every measure."""

Content = dict[str, Any]


class Trial(NamedTuple):
    """Holds one table as the parser read it in one file.

    It is whole if that file has no mistake: then the parser asked for all keys.
    """

    content: Mapping[str, Any]
    asked: Mapping[str, Declaration]
    alternatives: Sequence[tuple[str, ...]]
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

    It is `topology`, `slas`, `channels` or `tests`.
    """
    return {"$schema": DIALECT, "title": f"Tidemark: {file}", **FORMS[file]()}


def _topology_file() -> Form:
    starts = [{"name": NAME, "operators": {NAME: {KIND: kind}}} for kind in KINDS]
    return _table(_trials(lambda content: topology.parse_part(content, file=NAME), starts), "")


def _sla_file() -> Form:
    """Returns the form of a file of SLAs."""
    example = topology.parse(tomllib.loads(EXAMPLE), file=NAME)
    trials = _trials(lambda content: sla_spec.parse(content, example, file=NAME), [{NAME: {NAME: {}}}])
    sla = _table(trials, f"{NAME}.{NAME}")
    windows: Form = {"type": "array", "items": {"type": "string"}, "minItems": 1}
    one = {
        "type": "object",
        "minProperties": 1,
        "properties": {
            name: {"if": {"type": "object"}, "then": sla, "else": setting}
            for name, setting in ((sla_spec.MAINTENANCE, windows), (sla_spec.RECORDED, {"const": True}))
        },
        "additionalProperties": sla,
        "propertyNames": {"pattern": f"^{IDENTIFIER.pattern}$"},
    }
    of_all = {"if": {"type": "object"}, "then": one, "else": windows}
    return {"type": "object", "properties": {sla_spec.MAINTENANCE: of_all}, "additionalProperties": one}


def _channel_file() -> Form:
    """Returns the form of a file with a table for each channel."""
    names = {"pattern": f"^{IDENTIFIER.pattern}$", "not": {"const": channel_spec.LOG}}
    return {"type": "object", "propertyNames": names, "additionalProperties": channel_spec.FORM.schema}


FORMS: Mapping[str, Callable[[], Form]] = {
    "topology": _topology_file,
    "slas": _sla_file,
    "channels": _channel_file,
    "tests": lambda: topology_tests.FORM.schema,
}


def _trials(parse: Callable[[Content], object], starts: Iterable[Content]) -> Trials:
    """Parses files until none shows a new key or word."""
    trials: dict[str, dict[str, Trial]] = defaultdict(dict)
    tried: set[str] = set()
    waiting = [*starts]
    while waiting:
        content, tables, is_whole = _corrected(parse, waiting.pop())
        for at, keys in tables.items():
            trial = Trial(keys.content, dict(keys.asked), tuple(keys.alternatives), is_whole)
            # Most files differ in one table alone.
            context = f"{_context(content, at)} {at}"
            if (signature := f"{context} {keys.content} {is_whole}") in trials[at]:
                continue
            trials[at][signature] = trial
            for key, value in _values(keys):
                candidate = f"{context} {key} {value!r}"
                if candidate not in tried:
                    tried.add(candidate)
                    others = {name for group in keys.alternatives if key in group for name in group}
                    kept = {name: each for name, each in keys.content.items() if name not in {key, *others}}
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
            words += [content.get(key) for key in (KIND, *ASKING)]
    return words


def _table(trials: Trials, at: str) -> Form:
    """Returns the form of the table at the dotted place *at*."""
    kinds = next((trial.asked[KIND].form.get("enum") for trial in trials[at] if KIND in trial.asked), None)
    if kinds is None:
        return _of_one_kind(trials, at, trials[at])
    by_kind = []
    for kind in kinds:
        own = [trial for trial in trials[at] if trial.content.get(KIND) == kind]
        condition = {"properties": {KIND: {"const": kind}}, "required": [KIND]}
        by_kind.append({"if": condition, "then": _of_one_kind(trials, at, own)})
    return {"type": "object", "properties": {KIND: {"enum": kinds}}, "required": [KIND], "allOf": by_kind}


def _of_one_kind(trials: Trials, at: str, own: Sequence[Trial]) -> Form:
    """Returns the form of the tables *own* at *at*."""
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
        if not any(key in group for trial in whole for group in trial.alternatives):
            required = [key in trial.asked and not trial.asked[key].is_optional for trial in whole]
            rules += _rule(conditions, [key], required, {"required": [key]})
    for group in {group: None for trial in whole for group in trial.alternatives}:
        one: Form = {"oneOf": [{"required": [key]} for key in group]}
        rules += _rule(conditions, group, [group in trial.alternatives for trial in whole], one)
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
