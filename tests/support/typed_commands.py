"""Reads commands in backticks like a shell and the real command line."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Sequence
from functools import cache
from typing import Any

from tidemark.cli import main
from tidemark.model.topology import Topology
from tidemark.reports.pages.templates import COMMANDS
from tidemark.why.evidence.findings import WhyFinding

NEEDS_COMMAND = re.compile(r"(?<!-)\b(start|restart|clear|launch|requeue|reset|log|bound)\b")


@cache
def _parser() -> argparse.ArgumentParser:
    return main._parser()


def commands(text: str) -> list[list[str]]:
    """The words of each command that *text* has in backticks."""
    lines = [match["command"] for match in COMMANDS.finditer(text)]
    return [shlex.split(command) for line in lines for command in line.split(" && ")]


def can_be_typed(finding: WhyFinding, topology: Topology) -> None:
    """Asserts that each command of *finding* is valid for *topology*."""
    named = commands(finding.remedy)
    rest = COMMANDS.sub("", finding.remedy)
    assert not re.search(r"tidemark \w|airflow \w", rest), f"not in backticks: {finding.remedy}"
    assert named or not NEEDS_COMMAND.search(rest), f"names no command: {finding.remedy}"
    for program, *words in named:
        if program == "airflow":
            assert words[2] == f"tidemark_{topology.name}_streams"
            continue
        means(options_of(words), topology)


def options_of(words: Sequence[str]) -> dict[str, Any]:
    """Returns the options of a command line; the program exits where the command or an argument is unknown."""
    return vars(_parser().parse_args(words))


def means(options: dict[str, Any], topology: Topology) -> None:
    """Assert that what *options* name is in *topology*."""
    subs = {sub.name for sub in topology.sub_topologies}
    names = {
        "topology": {topology.name},
        "topologies": {topology.name},
        "stream": {f"{topology.name}/{sub}" for sub in subs},
        "sub_topology": subs,
        "source": {*topology.operators},
        "operator": {*topology.operators},
    }
    for key in names.keys() & options.keys():
        given = options[key] if isinstance(options[key], list) else [options[key]]
        assert {*given} <= names[key] | {None}, (key, given)
