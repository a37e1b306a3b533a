"""`tidemark plan`: compares a topology file with what its streams have kept."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import asdict

from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.streams import topology_with_file
from tidemark.collecting import names_in
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import Topology
from tidemark.stream.startup.changes import OperatorChange, changes_of
from tidemark.stream.startup.source_list import Fate

UNCHANGED, CHANGES, REFUSES = 0, 3, 4
"""Exit status: all goes on; something begins or ends; something is refused, or needs consent."""


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("topology", help="name of the topology, or its TOML file")
    parser.add_argument("--json", action="store_true", help="print JSON")


def command(options: argparse.Namespace) -> int:
    """Prints a line for each operator that does not just go on; returns UNCHANGED, CHANGES or REFUSES."""
    topology, layout = topology_with_file(options), Layout(existing_warehouse(options))
    changes = changes_of_topology(topology, layout)
    status = status_of(changes)
    if options.json:
        rows = [{**asdict(change), "fate": change.fate.value} for change in changes]
        say_inert(json.dumps({"topology": topology.name, "status": status, "operators": rows}, indent=2))
    else:
        say_inert("\n".join(lines_of(topology.name, changes)))
    return status


def changes_of_topology(topology: Topology, layout: Layout) -> list[OperatorChange]:
    """Returns what becomes of each operator of *topology*, whose streams have written to *layout*."""
    found = [change for sub in topology.sub_topologies for change in changes_of(Stream(topology, sub, layout))]
    streams = layout.control(topology.name, topology.sub_topologies[0].name).parent
    for home in sorted(streams.iterdir() if streams.is_dir() else ()):
        if home.name not in names_in(topology.sub_topologies) and (home / "journal").is_dir():
            why = "the stream is not in the file any more; its tables stay"
            found.append(OperatorChange(sub_topology=home.name, operator="*", fate=Fate.ENDS, why=why))
    return found


def status_of(changes: Sequence[OperatorChange]) -> int:
    """Returns the exit status of *changes*."""
    fates = {change.fate for change in changes}
    if fates & {Fate.REFUSED, Fate.NEEDS_CONSENT}:
        return REFUSES
    return CHANGES if fates & {Fate.BEGINS, Fate.ENDS} else UNCHANGED


def lines_of(topology: str, changes: Sequence[OperatorChange]) -> list[str]:
    """Returns *changes* as text: a line that counts them, and one for each that a person should know."""
    lines = [summary(topology, changes)]
    for change in changes:
        if change.fate is not Fate.GOES_ON or change.why:
            more = [f"it leaves {change.unread:,} records unread"] if change.unread else []
            more += [f"{change.held:,} that wait are dropped"] if change.held else []
            text = "; ".join([*filter(None, [change.why]), *more])
            lines.append(f"  {change.fate}: {change.sub_topology}/{change.operator}: {text}")
            lines += [f"    {change.way}"] if change.way else []
    return lines


def summary(topology: str, changes: Sequence[OperatorChange]) -> str:
    """Returns how many operators have each fate."""
    n = {fate: sum(change.fate is fate for change in changes) for fate in Fate}
    parts = [f"{n[fate]} {_verb(fate, n[fate])}" for fate in Fate if n[fate]]
    return f"{topology}: {', '.join(parts)}"


def _verb(fate: Fate, n: int) -> str:
    plural = {
        Fate.GOES_ON: "go on",
        Fate.BEGINS: "begin",
        Fate.ENDS: "end",
        Fate.NEEDS_CONSENT: "need consent",
        Fate.REFUSED: "are refused",
    }
    return plural[fate] if n > 1 else ("is refused" if fate is Fate.REFUSED else fate.value)
