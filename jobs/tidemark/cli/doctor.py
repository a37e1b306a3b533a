"""`tidemark doctor`: may a topology's streams go on from what lies in the warehouse, and if not, how else."""

from __future__ import annotations

import argparse

from tidemark.control import Control
from tidemark.spec.layout import Layout
from tidemark.spec.topology import Topology
from tidemark.stream import unread
from tidemark.stream.evidence import evidence
from tidemark.stream.soundness import Finding, findings
from tidemark.stream.wiring import Stream

REMOVE_TORN = "remove-torn"


def options(parser: argparse.ArgumentParser) -> None:
    """What the command takes."""
    parser.add_argument("topology", metavar="TOPOLOGY", help="its name, or its TOML file")
    parser.add_argument("sub_topology", metavar="SUB_TOPOLOGY", nargs="?", help="one of its sub-topologies (all)")
    parser.add_argument(
        "--apply", choices=[REMOVE_TORN], help="remove torn files of the checkpoint that nothing depends on"
    )


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
