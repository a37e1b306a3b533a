"""Writes what a test has seen into its file, as what is expected."""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence
from contextlib import suppress
from itertools import pairwise
from typing import Any

from tidemark.errors import InvalidSpec
from tidemark.model.settings.toml_files import toml_text
from tidemark.selection import omit
from tidemark.testing.file_format import DEAD_LETTERS, Expectation, Row, TopologyTest
from tidemark.testing.outcome import Difference, Outcome

_TEST = re.compile(r"^[ \t]*\[\[[ \t]*test[ \t]*\]\]", re.MULTILINE)
_SECTION = re.compile(r"^[ \t]*\[\[?[^\[\]\n]+\]?\][ \t]*(#.*)?$", re.MULTILINE)
_EXPECT = re.compile(r"[ \t]*\[\[[ \t]*test[ \t]*\.[ \t]*expect[ \t]*\]\]")
_EMPTY = re.compile(r"\s*(#.*)?\s*")
_BARE = re.compile(r"[A-Za-z0-9_-]+")


def accepted(text: str, outcomes: Sequence[tuple[TopologyTest, Outcome, Sequence[Difference]]], file: str) -> str:
    """Returns the *text* of a file of tests with what was seen as what is expected.

    Of a test with a difference, or that expects nothing yet, the sections `[[test.expect]]` are written anew at its
    end: for the operators, columns and counts that they had; without any for the sinks, and records that did not go on.
    All else of the file stays as it is, and so do its comments.

    Args:
        text: the file.
        outcomes: each of its tests, in their order, with what was seen and its differences.
        file: its name, for errors.

    Raises:
        InvalidSpec: its tests are not in sections `[[test]]`, and cannot be found.
    """
    head, *parts = _split(text, _TEST)
    if len(parts) == len(outcomes):
        for number, (test, outcome, differences) in enumerate(outcomes):
            if differences or not test.expected:
                parts[number] = _replaced(parts[number], expectations(test, outcome))
        written = "".join([head, *parts]).rstrip("\n") + "\n"
        with suppress(tomllib.TOMLDecodeError):
            if _without_expectations(written) == _without_expectations(text):
                return written
    remedy = "write each test as [[test]], and what it expects as [[test.expect]], to have it written by --accept"
    raise InvalidSpec.at(file, "test", "is not written in sections", remedy)


def _replaced(part: str, sections: str) -> str:
    """Returns the *part* of a file that has a test with *sections* in place of what it expects."""
    lines = part.splitlines(keepends=True)
    # Comments at the end are about the next test.
    end = max(number for number, line in enumerate(lines, start=1) if not _EMPTY.fullmatch(line))
    kept = [section for section in _split("".join(lines[:end]), _SECTION) if not _EXPECT.match(section)]
    return f"{''.join(kept).rstrip()}\n\n{sections}{''.join(lines[end:])}"


def expectations(test: TopologyTest, outcome: Outcome) -> str:
    """Returns the sections `[[test.expect]]` of *test*, with what was seen."""
    expected = test.expected or [
        Expectation(place="", operator=name, rows=(), current=None, counts=None)
        for name in outcome.told
        if name != DEAD_LETTERS or outcome.rows(name)
    ]
    return "\n".join(_section(each, outcome) for each in expected)


def _section(expected: Expectation, outcome: Outcome) -> str:
    lines = ["[[test.expect]]", f"operator = {json.dumps(expected.operator)}"]
    of_key = {"rows": (expected.rows, outcome.rows), "current": (expected.current, outcome.current)}
    for key, (before, seen) in of_key.items():
        if before is not None:
            columns = dict.fromkeys(name for row in before for name in row) or outcome.own_columns(expected.operator)
            rows = [{name: row[name] for name in columns} for row in seen(expected.operator)]
            lines += [f"{key} = [", *(f"  {_row(row)}," for row in rows), "]"] if rows else [f"{key} = []"]
    if expected.counts:
        counts = {name: outcome.counts(expected.operator).get(name, 0) for name in expected.counts}
        lines.append(f"counts = {_toml(counts)}")
    return "\n".join([*lines, ""])


def _row(row: Row) -> str:
    """Returns *row* as a table; as JSON in text where a value is null, which TOML does not have."""
    text = json.dumps(row, ensure_ascii=False)
    return toml_text(text) if "null" in text else _toml(row)


def _toml(value: Any) -> str:
    """Returns *value* on one line of TOML."""
    match value:
        case dict():
            named = ((name if _BARE.fullmatch(name) else json.dumps(name), each) for name, each in value.items())
            return f"{{ {', '.join(f'{name} = {_toml(each)}' for name, each in named)} }}"
        case list():
            return f"[{', '.join(map(_toml, value))}]"
        case float():
            return repr(value)  # also nan and inf
        case str():
            return toml_text(value)
        case _:
            return json.dumps(value)


def _split(text: str, before: re.Pattern[str]) -> list[str]:
    """Returns *text* in parts, the second and later of which begin with what *before* matches."""
    starts = [0, *(match.start() for match in before.finditer(text)), len(text)]
    return [text[start:end] for start, end in pairwise(starts)]


def _without_expectations(text: str) -> Mapping[str, Any]:
    content = tomllib.loads(text)
    return {**content, "test": [omit(test, ["expect"]) for test in content["test"]]}
