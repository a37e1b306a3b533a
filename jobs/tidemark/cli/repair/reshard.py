"""`tidemark reshard`: changes the number of shards of a drained stream.

It distributes the stream's state to them.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.plan import PlanChanged, RepairPlan, add_author, add_plan, carry_out
from tidemark.cli.shared.streams import topology_with_file
from tidemark.control.folder import Control
from tidemark.errors import InvalidArgument, TidemarkError, argument_type
from tidemark.model.project.layout import Layout, usable
from tidemark.model.stream import Stream
from tidemark.model.topology import Topology
from tidemark.selection import names_in
from tidemark.storage.delta.format import refuse_other
from tidemark.stream.journal.entries import Journal, newest_entry
from tidemark.stream.journal.state_runs import StateRuns
from tidemark.stream.operate.steps import Steps
from tidemark.stream.read.joined_tables import Reference
from tidemark.stream.shards.resharding import forget, remembered_shards, write_anew
from tidemark.stream.shards.sharding import Sharding, sharding
from tidemark.stream.state.files import files_of, remove_unnamed


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    parser.add_argument("topology", help="name of the topology, or its TOML file")
    parser.add_argument(
        "sub_topology",
        nargs="?",
        type=argument_type(usable),
        help="sub-topology (default: all of the topology)",
    )
    parser.add_argument("--shards", type=_number, required=True, metavar="N", help="new number of shards")
    add_author(parser)
    add_plan(parser)


def command(options: argparse.Namespace) -> int:
    """Distributes the state, and prints a line for each stream."""
    topology, warehouse = topology_with_file(options), existing_warehouse(options)
    planned = partial(reshard_plan, topology, warehouse, options.sub_topology, options.shards, say_inert)
    say_inert(carry_out(planned, options, Layout(warehouse), topology.name, note=options.note))
    return 0


def reshard_plan(
    topology: Topology, warehouse: Path, name: str | None, shards: int, say: Callable[[str], None] = lambda text: None
) -> RepairPlan:
    """Returns the plan to distribute states.

    Its result has a line for each stream.

    Args:
        topology: the topology.
        warehouse: the warehouse.
        name: one of its streams; None: all.
        shards: the new number of shards.
        say: prints a line for each old shard.

    Raises:
        InvalidArgument: a driver of one of the streams lives.
        ShardingImpossible: one of the streams cannot run in shards.
        OtherFormat: a version with another format has written to the warehouse.
    """
    lines: list[str] = []
    newest: list[tuple[str, int, int]] = []
    steps: list[Callable[[], str]] = []
    # All streams are checked before the first is changed.
    for stream, placement in _drained(topology, warehouse, name, shards):
        entry = newest_entry(stream.control)
        in_file, batch_id = topology.shards_of(stream.sub.name), entry.batch_id if entry else None
        steps.append(partial(_reshard, stream, placement, in_file, say, batch_id))
        if entry is None:
            lines.append(f"{_name(stream)}: no batch was decided yet, so there is no state")
        elif len(entry.notes.states) == shards or remembered_shards(stream, entry) is not None:
            lines.append(f"{_name(stream)}: its state is in {_shards(shards)} already")
        else:
            n = len(entry.notes.states)
            text = f"its state after batch {entry.batch_id} goes from {_shards(n)} to {_shards(shards)}"
            lines.append(f"{_name(stream)}: {text}; its file has shards = {in_file}")
            newest.append((stream.sub.name, entry.batch_id, n))
    return RepairPlan(
        topology=topology.name,
        sub_topology=name,
        effect="\n".join(lines),
        state=(shards, newest),
        apply=lambda: "\n".join([step() for step in steps]),
        is_needed=bool(newest),
    )


def _drained(
    topology: Topology, warehouse: Path, name: str | None, shards: int
) -> list[tuple[Stream, Sharding | None]]:
    """Returns streams with *shards*, and how their keys are distributed."""
    refuse_other(warehouse)
    names = [name] if name else names_in(topology.sub_topologies)
    wanted = replace(topology, shards={**topology.shards, **dict.fromkeys(names, shards)})
    streams = [Stream(wanted, wanted.sub_topology(each), Layout(warehouse)) for each in names]
    by = list(map(sharding_of, streams))
    for stream in streams:
        if Control(stream.control).is_held():
            msg = f"{_name(stream)}: its driver is running; drain it first (`tidemark down {stream.topology.name}`)"
            raise InvalidArgument(msg)
    return list(zip(streams, by, strict=True))


def sharding_of(stream: Stream) -> Sharding | None:
    """Returns how the keys of *stream* are distributed; None for one shard."""
    steps = Steps(stream.topology, Reference(stream.layout.warehouse))
    return sharding(stream.topology, stream.sub, steps) if stream.shards > 1 else None


def _reshard(
    stream: Stream, by: Sharding | None, in_file: int, say: Callable[[str], None], batch_id: int | None
) -> str:
    """Distributes the state of *stream*; no driver of it can start meanwhile.

    Args:
        stream: the stream, with its new number of shards.
        by: how its keys are distributed; None for one shard.
        in_file: the number of shards in the topology's file.
        say: prints a line for each old shard.
        batch_id: its newest batch when this was planned; None: it had none.

    Returns:
        A line with the result.

    Raises:
        PlanChanged: it has a newer batch.
    """
    name, home = _name(stream), stream.control / "journal"
    if not home.is_dir():
        return f"{name}: no batch was decided yet, so there is no state"
    with Control(stream.control).held() as check_lease:
        try:
            newest = Journal(home, "data").newest()
            if newest is not None and newest.batch_id != batch_id:
                msg = f"{name}: it has decided batch {newest.batch_id} since; its state is unchanged; look again"
                raise PlanChanged(msg)
            return f"{name}: {_redistribute(stream, Journal(home, 'data'), by, in_file, say, check_lease)}"
        except OSError as error:
            msg = f"{name}: {error}; the state is unchanged; correct this and run the command again"
            raise TidemarkError(msg) from error


def _redistribute(
    stream: Stream,
    journal: Journal,
    by: Sharding | None,
    in_file: int,
    say: Callable[[str], None],
    check_lease: Callable[[], None],
) -> str:
    """Distributes the state of *stream*, and returns the result as text.

    Args:
        stream: the stream, with its new number of shards.
        journal: its journal.
        by: how its keys are distributed; None for one shard.
        in_file: the number of shards in the topology's file.
        say: prints a line for each old shard.
        check_lease: raises if the lease is lost.
    """
    # A distribution that was begun before is removed first.
    forget(stream.control)
    newest = journal.newest()
    if newest is None:
        return "no batch was decided yet, so there is no state"
    old = newest.notes.states
    remove_unnamed(stream.control, old, check_lease=check_lease)
    if len(old) == stream.shards:
        return f"its state is in {_shards(stream.shards)} already"
    told = partial(_say_of, stream, say)
    runs = write_anew(stream, journal, newest, by, told, check_lease=check_lease)
    done = f"{_amount(stream, runs)} of its state after batch {newest.batch_id} went from {_shards(len(old))}"
    done = f"{done} to {_shards(stream.shards)}"
    if in_file == stream.shards:
        return f"{done}; start its driver"
    return f"{done}; its file has shards = {in_file}: write {stream.shards}, then start its driver"


def _say_of(stream: Stream, say: Callable[[str], None], line: str) -> None:
    say(f"{_name(stream)}: {line}")


def _amount(stream: Stream, shards: Sequence[StateRuns]) -> str:
    rows = sum(runs.rows for runs in shards)
    size = sum(file.stat().st_size for file in files_of(stream.control, shards))
    return f"{rows:,} rows ({size:,} bytes)"


def _name(stream: Stream) -> str:
    return f"{stream.topology.name}/{stream.sub.name}"


def _shards(n: int) -> str:
    return "1 shard" if n == 1 else f"{n} shards"


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        msg = f"the number of shards must be 1 or more, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
