"""`tidemark doctor`: may a topology's streams go on from what lies in the warehouse, and if not, how else."""

from __future__ import annotations

import argparse

from tidemark.cli import options
from tidemark.cli.output import say_inert
from tidemark.control import Control
from tidemark.report.batch_job import topology as topology_named
from tidemark.spec.layout import Layout
from tidemark.spec.stream import Stream
from tidemark.spec.topology import Topology
from tidemark.stream import unread
from tidemark.stream.evidence import evidence
from tidemark.stream.soundness import Finding, findings

REMOVE_TORN = "remove-torn"


def add_options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    options.add_topology(parser)
    parser.add_argument("sub_topology", metavar="SUB_TOPOLOGY", nargs="?", help="one of its sub-topologies (all)")
    parser.add_argument(
        "--apply", choices=[REMOVE_TORN], help="remove torn files of the checkpoint that nothing depends on"
    )


def command(asked: argparse.Namespace) -> int:
    """Show what was found; 1 when a stream is unsound."""
    layout, of = Layout(options.warehouse(asked)), topology_named(asked.topology)
    found = doctor(of, layout, asked.sub_topology, remove_torn=asked.apply == REMOVE_TORN)
    for sub_topology, faults in found.items():
        say_inert(f"{sub_topology}: {'unsound' if faults else 'sound'}")
        if faults:
            say_inert(faults)
    for sub_topology, reading in begun(of, layout, asked.sub_topology).items():
        say_inert(f"{sub_topology}: its newest batch is not decided: {reading}")
    return 1 if any(found.values()) else 0


def doctor(topology: Topology, layout: Layout, sub_topology: str | None, *, remove_torn: bool) -> dict[str, str]:
    """What was found, as text by sub-topology; empty where it is sound. Torn files go first if *remove_torn*.

    Raises AlreadyRunning when they should and a driver runs the stream.
    """
    subs = [topology.sub_topology(sub_topology)] if sub_topology else topology.sub_topologies
    found: dict[str, str] = {}
    for stream in (Stream(topology, sub, layout) for sub in subs):
        faults = findings(evidence(stream))
        if remove_torn and any(fault.removable for fault in faults):
            _remove(stream, faults)
            faults = findings(evidence(stream))
        found[stream.sub.name] = "\n".join(fault.lines for fault in faults)
    return found


def begun(topology: Topology, layout: Layout, sub_topology: str | None) -> dict[str, str]:
    """Per sub-topology what its driver had begun to read and not decided, as part of a sentence; none where nothing."""
    subs = [topology.sub_topology(sub_topology)] if sub_topology else topology.sub_topologies
    found = {sub.name: unread.begun(layout.control(topology.name, sub.name), sub) for sub in subs}
    return {name: text for name, text in found.items() if text}


def _remove(stream: Stream, faults: list[Finding]) -> None:
    control = Control(stream.control)
    control.acquire()  # no driver starts meanwhile
    for fault in faults:
        for file in fault.removable:
            file.unlink(missing_ok=True)
    control.release()
