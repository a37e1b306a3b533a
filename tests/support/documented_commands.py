"""Finds the commands that pages and `--help` show."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator, Mapping
from contextlib import redirect_stdout
from functools import cache
from io import StringIO
from itertools import pairwise, product
from pathlib import Path
from typing import NamedTuple, NoReturn
from unittest import mock

from tidemark.cli import main

PROJECT = Path(__file__).parents[2]
PAGES = ("README.md", "CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md")
PLACEHOLDERS: Mapping[str, str] = {
    "TOPOLOGY": "flights",
    "TOPOLOGY/STREAM": "flights/status",
    "STREAM": "flights/status",
    "SUB_TOPOLOGY": "status",
    "OPERATOR": "flight_status",
    "SOURCE": "weather",
    "S": "weather",
    "TABLE": "flight_board",
    "KEY": "UA753-2013-06-27-EWR",
    "TOPIC": "readings",
    "INSTANT": "2026-03-01T12:00Z",
    "LENGTH": "1 s",
    "FACTOR": "0.5",
    "N": "3",
    "HOST:PORT": "localhost:9092",
    "FILE": "jobs/topologies/flights.toml",
    "NEW.toml": "jobs/topologies/flights.toml",
    "DIR": "sensors",
    "NEW": "elsewhere",
}
"""An example of each word in capitals. `NAME` depends on the command."""
LATER = "2026-03-01T13:00Z"
NAMES = {"whatif": "carrier_state", "topic": "readings"}
_PLACEHOLDER = re.compile(r"[A-Z][A-Z_:/]*(?:\.toml)?")
_OPTIONAL = re.compile(r"\[((?:--|[A-Z])[^\]]*)\]")
_EITHER = re.compile(r"\(([^()]* \| [^()]*)\)")
_FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)
_CODE = re.compile(r"`([^`\n]+)`")
_STARTS = re.compile(r"(?:\$ |\S*/bin/)?(tidemark(?: .*)?)$")


class ShownCommand(NamedTuple):
    """A command: the page or help that shows it, and its text.

    Only part of a command that is shown *in_text* may be there, such as `tidemark requeue --late`.
    """

    where: str
    text: str
    in_text: bool


def shown_commands() -> list[ShownCommand]:
    """Returns the commands of all pages and of each command's `--help`."""
    pages = [*(PROJECT / name for name in PAGES), *sorted((PROJECT / "docs").rglob("*.md"))]
    found: list[ShownCommand] = []
    for page in pages:
        found += _of_page(page.relative_to(PROJECT).as_posix(), page.read_text(encoding="utf-8"))
    for name, text in _helps():
        lines = re.findall(r"^  (tidemark .*?)(?:   +\S.*)?$", text, flags=re.MULTILINE)
        found += [ShownCommand(name, line, in_text=False) for line in lines]
        found += [ShownCommand(name, code, in_text=True) for code in _codes(text)]
    return found


def _of_page(name: str, text: str) -> Iterator[ShownCommand]:
    for language, block in _FENCE.findall(text):
        if language in {"", "sh", "bash", "console"}:
            yield from (ShownCommand(name, command, in_text=False) for command in _of_block(block))
    for code in _codes(_FENCE.sub("", text)):
        yield ShownCommand(name, code, in_text=True)


def _codes(text: str) -> Iterator[str]:
    for code in _CODE.findall(text):
        for part in (*re.findall(r"\$\(([^)]*)\)", code), *code.split(" && ")):
            if match := _STARTS.match(part.strip()):
                yield match[1]


def _of_block(block: str) -> Iterator[str]:
    """Yields the commands of a block; one ends with its line, or with the quotes that it opens there."""
    lines = iter(block.replace("\\\n", " ").splitlines())
    for line in lines:
        if match := _STARTS.match(line.strip()):
            text = match[1]
            while text.count('"') % 2 - text.count('\\"') % 2:
                text += "\n" + next(lines)
            yield text


@cache
def _parser() -> argparse.ArgumentParser:
    return main._parser()


def _helps() -> Iterator[tuple[str, str]]:
    """Yields name and help of the program and of all its commands."""

    def of(name: str, parser: argparse.ArgumentParser) -> Iterator[tuple[str, str]]:
        yield f"{name} --help", parser.format_help()
        for action in parser._actions:
            if isinstance(action, argparse._SubParsersAction):
                for word, inner in action.choices.items():
                    yield from of(f"{name} {word}", inner)

    yield from of("tidemark", _parser())


def variants(text: str) -> Iterator[list[str]]:
    """Yields the words of each command that *text* can mean, after `tidemark`.

    An option in brackets is left out or written, of words between bars each is meant, and a word in capitals stands for
    any value.
    """
    for kept in ("", r"\1"):
        chosen = _OPTIONAL.sub(kept, text)
        groups = [group.split(" | ") for group in _EITHER.findall(chosen)]
        for picked in product(*groups):
            left = iter(picked)
            yield from _words(_EITHER.sub(lambda _, left=left: next(left), chosen))
        if chosen == text:
            return


def _words(text: str) -> Iterator[list[str]]:
    words = shlex.split(text, comments=True)[1:]
    end = next((n for n, word in enumerate(words) if word in {">", "|", "&&", ";"}), len(words))
    command = next((word for word in words if word in NAMES), "")
    values = {**PLACEHOLDERS, "NAME": NAMES.get(command, "")}
    for each in product(*(word.split("|") if re.fullmatch(r"[a-z|]+", word) else [word] for word in words[:end])):
        named = [values[word] if _PLACEHOLDER.fullmatch(word) else word for word in each]
        # A span that is shown as `--from INSTANT --to INSTANT` has two of them.
        yield [
            LATER if before == "--to" and word == values["INSTANT"] else word for before, word in pairwise(["", *named])
        ]


def refusal(words: list[str]) -> str | None:
    """Returns why the real command line refuses *words*; None: it accepts them."""

    def refuse(parser: argparse.ArgumentParser, message: str) -> NoReturn:
        raise _Refused(message)

    with mock.patch.object(argparse.ArgumentParser, "error", refuse), redirect_stdout(StringIO()):
        try:
            main._options(["tidemark", *words])
        except _Refused as error:
            return str(error)
        except SystemExit:
            return None  # --help
    return None


class _Refused(Exception):
    pass


def unknown_words(words: list[str]) -> list[str]:
    """Returns the options among *words* that their command does not have, or its name if there is no such command."""
    parsers = [_parser()]
    options = {*parsers[0]._option_string_actions}
    unknown: list[str] = []
    for word in words:
        inner = [a for a in parsers[-1]._actions if isinstance(a, argparse._SubParsersAction)]
        if word.startswith("-"):
            unknown += [] if word.partition("=")[0] in options else [word]
        elif inner and word in inner[0].choices:
            parsers.append(inner[0].choices[word])
            options |= {*parsers[-1]._option_string_actions}
        elif len(parsers) == 1 and word != "…":
            unknown.append(word)
    return unknown
