"""`tidemark doctor`: checks if a topology's streams can continue.

It checks what is in the warehouse. If a stream cannot continue it names the remedies.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path

from tidemark.cli.shared.options import add_topology, existing_warehouse
from tidemark.cli.shared.output import say_inert, say_with_commands
from tidemark.cli.shared.plan import PlanChanged, RepairPlan, add_author, add_plan, carry_out
from tidemark.cli.shared.streams import topology_with_file
from tidemark.control.folder import Control
from tidemark.errors import UnreadableFile
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.topology import Topology
from tidemark.storage.delta.data_files import damaged_data_files
from tidemark.storage.delta.format import refuse_other
from tidemark.storage.object_path import ObjectPath
from tidemark.stream.startup import unread
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.fatal import FailedBatch
from tidemark.stream.startup.soundness import findings

REMOVE_TORN = "remove-torn"


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    add_topology(parser)
    parser.add_argument("sub_topology", metavar="SUB_TOPOLOGY", nargs="?", help="sub-topology to check (default: all)")
    parser.add_argument(
        "--apply", choices=[REMOVE_TORN], help="remove half-written files of the checkpoint on which nothing depends"
    )
    parser.add_argument(
        "--deep",
        action="store_true",
        help="also read the footer of each data file of its tables",
    )
    add_author(parser)
    add_plan(parser)


def command(options: argparse.Namespace) -> int:
    """Prints the faults of each stream; returns 1 if one is unsound."""
    layout, of = Layout(existing_warehouse(options)), topology_with_file(options)
    # Findings about another format may be wrong, and their remedies harmful.
    with suppress(UnreadableFile):  # a damaged stamp is a finding
        refuse_other(layout.warehouse)
    if options.apply == REMOVE_TORN:
        planned = partial(removal_plan, of, layout, options.sub_topology)
        say_inert(carry_out(planned, options, layout, of.name, note=options.note))
        if options.dry_run:
            return 0
    faults_by_stream = doctor(of, layout, options.sub_topology, deep=options.deep)
    for sub_topology, faults in faults_by_stream.items():
        say_inert(f"{sub_topology}: {'unsound' if faults else 'sound'}")
        if faults:
            say_with_commands(faults, options)
    for sub_topology, reading in undecided_batches(of, layout, options.sub_topology).items():
        say_inert(f"{sub_topology}: its newest batch is not decided: {reading}")
    # A plan was carried out, whatever else is unsound.
    return 1 if any(faults_by_stream.values()) and options.plan is None else 0


def doctor(topology: Topology, layout: Layout, sub_topology: str | None, *, deep: bool = False) -> dict[str, str]:
    """Returns the faults of each sub-topology; empty if it is sound.

    *sub_topology* is the name of one; None: all. If *deep*, footers of data files are read, too. In an object store
    the size of a file is a request, so there they are compared only then.
    """
    looks = deep or not isinstance(layout.warehouse, ObjectPath)
    look = partial(damaged_data_files, footers=deep) if looks else None
    subs = [topology.sub_topology(sub_topology)] if sub_topology else topology.sub_topologies
    texts: dict[str, str] = {}
    for stream in (Stream(topology, sub, layout) for sub in subs):
        texts[stream.sub.name] = "\n".join(fault.lines for fault in findings(evidence(stream, look=look)))
    return texts


def removal_plan(topology: Topology, layout: Layout, sub_topology: str | None) -> RepairPlan:
    """Returns the plan to remove torn files of a checkpoint.

    The arguments are those of `doctor`. To apply it raises AlreadyRunning if a driver runs, and PlanChanged if one has
    run since.
    """
    subs = [topology.sub_topology(sub_topology)] if sub_topology else topology.sub_topologies
    faults: list[str] = []
    files: list[Path] = []
    removals: list[Callable[[], None]] = []
    for stream in (Stream(topology, sub, layout) for sub in subs):
        control = Control(stream.control)
        # Before the look: a driver that lives may be writing a file that looks torn.
        epoch = None if control.is_held() else control.epoch()
        own = findings(evidence(stream))
        faults += [f"{topology.name}/{stream.sub.name}: {fault.lines}" for fault in own]
        if torn := [file for fault in own for file in fault.removable if file.exists()]:
            files += torn
            removals.append(partial(_remove, control, torn, epoch))

    def apply() -> str:
        for remove in removals:
            remove()
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
    texts: dict[str, str] = {}
    for sub in subs:
        control = Control(layout.control(topology.name, sub.name))
        if text := unread.unread_clause(control.home, sub):
            texts[sub.name] = text
            failed = control.failed_batch(FailedBatch.of) or FailedBatch()
            # A failed batch that was decided since has other records than the one that is undecided now.
            if failed.record and (failed.batch_id, failed.ranges) == unread.unread_ranges(control.home, sub):
                command = unread.skip_command(topology.name, sub.name, failed.record)
                texts[sub.name] += f"\n  it fails at the record {failed.record}: {failed.cause}\n  remedy: {command}"
    return texts


def _remove(control: Control, files: list[Path], epoch: int | None) -> None:
    """Removes *files* of a stream whose newest driver was that of *epoch*.

    None: it lived when the files were found.
    """
    own = control.acquire()  # no driver starts while files are removed
    try:
        if epoch is None or own != epoch + 1:
            msg = f"{control.home}: a driver has run since its files were looked at; they stay; look again"
            raise PlanChanged(msg)
        for file in files:
            file.unlink(missing_ok=True)
    finally:
        control.release()
