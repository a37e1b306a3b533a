"""`tidemark reshard`: deal the state of a drained stream out to another number of shards."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from tidemark.cli import options
from tidemark.cli.output import say_inert
from tidemark.control import Control
from tidemark.delta import Reference
from tidemark.errors import InvalidArgument, TidemarkError
from tidemark.report.batch_job import told
from tidemark.report.batch_job import topology as topology_named
from tidemark.spec.layout import Layout, usable
from tidemark.spec.stream import Stream
from tidemark.spec.topology import Topology
from tidemark.stream.distributed.resharding import forget, remember, reshard
from tidemark.stream.distributed.sharding import Sharding, sharding
from tidemark.stream.journal import Journal
from tidemark.stream.state_files import StateFiles, StateRuns, files_of, remove_unnamed
from tidemark.stream.steps import Steps


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("topology", help="its name, or its TOML file")
    parser.add_argument("sub_topology", nargs="?", type=told(usable), help="the stream (all that are to have N shards)")
    parser.add_argument("--shards", type=_number, required=True, metavar="N", help="how many its state is dealt out to")


def command(asked: argparse.Namespace) -> int:
    """Deal the state out, and show what was done."""
    topology, warehouse = topology_named(asked.topology), options.warehouse(asked)
    for line in reshard_streams(topology, warehouse, asked.sub_topology, asked.shards, say_inert):
        say_inert(line)
    return 0


def reshard_streams(
    topology: Topology,
    warehouse: Path,
    name: str | None,
    shards: int,
    say: Callable[[str], None] = lambda text: None,
) -> Iterator[str]:
    """Yield a line for each stream that was done; *say* is told of each old shard.

    Raises InvalidArgument while a driver of one lives, and NotSharded where one cannot run in shards.
    """
    names = [name] if name else [sub.name for sub in topology.sub_topologies]
    wanted = replace(topology, shards={**topology.shards, **dict.fromkeys(names, shards)})
    streams = [Stream(wanted, wanted.sub_topology(each), Layout(warehouse)) for each in names]
    by = [_sharding(stream) for stream in streams]
    for stream in streams:
        if Control(stream.control).is_held():
            msg = f"{_name(stream)}: its driver lives; drain it first"
            raise InvalidArgument(msg)
    for stream, placement in zip(streams, by, strict=True):
        yield _resharded(stream, placement, topology.shards_of(stream.sub.name), say)


def _sharding(stream: Stream) -> Sharding | None:
    """Return how the keys of *stream* are dealt out; None for one shard."""
    steps = Steps(stream.topology, Reference(stream.layout.warehouse))
    return sharding(stream.topology, stream.sub, steps) if stream.shards > 1 else None


def _resharded(stream: Stream, by: Sharding | None, in_file: int, say: Callable[[str], None]) -> str:
    """Deal out the state of *stream*, of which no driver may start meanwhile; *in_file* is what its topology's has."""
    name, home = _name(stream), stream.control / "journal"
    if not home.is_dir():
        return f"{name}: no batch was decided yet, so there is no state"
    with Control(stream.control).held() as check_lease:
        try:
            return f"{name}: {_dealt_out(stream, Journal(home, 'data'), by, in_file, say, check_lease)}"
        except OSError as error:
            msg = f"{name}: {error}; the state is as it was: make that possible, and run the command again"
            raise TidemarkError(msg) from error


def _dealt_out(
    stream: Stream,
    journal: Journal,
    by: Sharding | None,
    in_file: int,
    say: Callable[[str], None],
    check_lease: Callable[[], None],
) -> str:
    """Deal the state out, without what was dealt out before; the answer says what was done."""
    forget(stream.control)
    newest = journal.newest()
    if newest is None:
        return "no batch was decided yet, so there is no state"
    old = StateRuns.of(newest.notes)
    if old is not None:
        remove_unnamed(stream.control, old, check_lease=check_lease)
        if len(old) == stream.shards:
            return f"its state is in {_shards(stream.shards)} already"
    files = partial(StateFiles, stream, journal, shards=stream.shards, check_lease=check_lease)
    runs = reshard(stream, journal, newest, by, files, lambda line: say(f"{_name(stream)}: {line}"))
    remember(stream.control, runs, check_lease=check_lease)
    source = "the tables of an older version" if old is None else _shards(len(old))
    done = f"{_amount(stream, runs)} of its state after batch {newest.batch_id} went from {source}"
    done = f"{done} to {_shards(stream.shards)}"
    if in_file == stream.shards:
        return f"{done}; start its driver"
    return f"{done}; its file has shards = {in_file}: write {stream.shards}, then start its driver"


def _amount(stream: Stream, shards: Sequence[StateRuns]) -> str:
    rows = sum(run.rows for runs in shards for run in runs.runs)
    size = sum(file.stat().st_size for file in files_of(stream.control, shards))
    return f"{rows:,} rows ({size:,} bytes)"


def _name(stream: Stream) -> str:
    return f"{stream.topology.name}/{stream.sub.name}"


def _shards(n: int) -> str:
    return "1 shard" if n == 1 else f"{n} shards"


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        msg = f"a number of shards is 1 or more, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
