"""`tidemark doctor`: checks if a topology's streams can continue.

It checks what is in the warehouse. If a stream cannot continue it names the remedies.
"""

from __future__ import annotations

import argparse

from tidemark.cli.shared.options import add_topology, existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.plan import RepairPlan, add_author, add_plan, carry_out
from tidemark.control.folder import Control
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import Topology
from tidemark.reports.batch_job import topology as topology_named
from tidemark.storage.delta.format import refuse_newer
from tidemark.stream.startup import unread
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import Inconsistency, findings

REMOVE_TORN = "remove-torn"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topology(parser)
    parser.add_argument("sub_topology", metavar="SUB_TOPOLOGY", nargs="?", help="sub-topology to check (default: all)")
    parser.add_argument(
        "--apply", choices=[REMOVE_TORN], help="remove half-written files of the checkpoint on which nothing depends"
    )
    add_author(parser)
    add_plan(parser)


def command(options: argparse.Namespace) -> int:
    """Prints the faults of each stream; returns 1 if one is unsound."""
    layout, of = Layout(existing_warehouse(options)), topology_named(options.topology)
    # Findings of an older version may be wrong, and its remedies harmful.
    refuse_newer(layout.warehouse)
    if options.apply == REMOVE_TORN:
        plan = removal_plan(of, layout, options.sub_topology)
        say_inert(carry_out(plan, options, layout.warehouse, note=options.note))
        if options.dry_run:
            return 0
    faults_by_stream = doctor(of, layout, options.sub_topology, remove_torn=False)
    for sub_topology, faults in faults_by_stream.items():
        say_inert(f"{sub_topology}: {'unsound' if faults else 'sound'}")
        if faults:
            say_inert(faults)
    for sub_topology, reading in undecided_batches(of, layout, options.sub_topology).items():
        say_inert(f"{sub_topology}: its newest batch is not decided: {reading}")
    # A plan was carried out, whatever else is unsound.
    return 1 if any(faults_by_stream.values()) and options.plan is None else 0


def doctor(topology: Topology, layout: Layout, sub_topology: str | None, *, remove_torn: bool) -> dict[str, str]:
    """Returns the faults of each sub-topology; empty if it is sound.

    Args:
        topology: the topology.
        layout: the warehouse.
        sub_topology: the name of a sub-topology; None: all.
        remove_torn: remove torn files of a checkpoint before the check that counts.

    Raises:
        AlreadyRunning: files are to be removed, and a driver runs the stream.
    """
    subs = [topology.sub_topology(sub_topology)] if sub_topology else topology.sub_topologies
    texts: dict[str, str] = {}
    for stream in (Stream(topology, sub, layout) for sub in subs):
        faults = findings(evidence(stream))
        if remove_torn and any(fault.removable for fault in faults):
            _remove(stream, faults)
            faults = findings(evidence(stream))
        texts[stream.sub.name] = "\n".join(fault.lines for fault in faults)
    return texts


def removal_plan(topology: Topology, layout: Layout, sub_topology: str | None) -> RepairPlan:
    """Returns the plan to remove torn files of a checkpoint.

    The arguments are those of `doctor`.
    """
    subs = [topology.sub_topology(sub_topology)] if sub_topology else topology.sub_topologies
    faults: list[str] = []
    files: list[str] = []
    for stream in (Stream(topology, sub, layout) for sub in subs):
        for fault in findings(evidence(stream)):
            faults.append(f"{topology.name}/{stream.sub.name}: {fault.lines}")
            files += [str(file) for file in fault.removable if file.exists()]

    def apply() -> str:
        doctor(topology, layout, sub_topology, remove_torn=True)
        return "\n".join(f"removed {file}" for file in files) or "there was nothing to remove"

    effect = "\n".join([*faults, *(f"it removes {file}" for file in files)] or [f"{topology.name}: sound"])
    return RepairPlan(
        topology=topology.name,
        sub_topology=sub_topology,
        effect=effect,
        state=effect,
        apply=apply,
        is_needed=bool(files),
    )


def undecided_batches(topology: Topology, layout: Layout, sub_topology: str | None) -> dict[str, str]:
    """Returns the undecided batch of each sub-topology, as part of a sentence.

    Its driver began to read the batch and did not decide it. Sub-topologies without one are left out.
    """
    subs = [topology.sub_topology(sub_topology)] if sub_topology else topology.sub_topologies
    texts = {sub.name: unread.begun(layout.control(topology.name, sub.name), sub) for sub in subs}
    return {name: text for name, text in texts.items() if text}


def _remove(stream: Stream, faults: list[Inconsistency]) -> None:
    control = Control(stream.control)
    control.acquire()  # no driver starts while files are removed
    for fault in faults:
        for file in fault.removable:
            file.unlink(missing_ok=True)
    control.release()
