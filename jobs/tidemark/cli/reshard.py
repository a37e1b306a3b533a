"""`tidemark reshard`: deal the state of a drained stream out to another number of shards."""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

from tidemark.cli import options
from tidemark.cli.output import say_inert
from tidemark.control import Control
from tidemark.delta import Reference
from tidemark.errors import InvalidArgument
from tidemark.report.batch_job import told
from tidemark.report.batch_job import topology as topology_named
from tidemark.spec.layout import Layout, usable
from tidemark.spec.stream import Stream
from tidemark.spec.topology import Topology
from tidemark.stream.distributed.resharding import remember, reshard
from tidemark.stream.distributed.sharding import sharding
from tidemark.stream.journal import Journal
from tidemark.stream.state_files import StateFiles, StateRuns
from tidemark.stream.steps import Steps


def add_options(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of the command."""
    parser.add_argument("topology", help="its name, or its TOML file")
    parser.add_argument("sub_topology", nargs="?", type=told(usable), help="the stream (all that are to have N shards)")
    parser.add_argument("--shards", type=_number, required=True, metavar="N", help="how many its state is dealt out to")


def command(asked: argparse.Namespace) -> int:
    """Deal the state out, and show what was done."""
    topology = topology_named(asked.topology)
    for line in reshard_streams(topology, options.warehouse(asked), asked.sub_topology, asked.shards):
        say_inert(line)
    return 0


def reshard_streams(topology: Topology, warehouse: Path, name: str | None, shards: int) -> Iterator[str]:
    """Yield a line for each stream that was done; raises InvalidArgument while a driver of one lives."""
    names = [name] if name else [sub.name for sub in topology.sub_topologies]
    wanted = replace(topology, shards={**topology.shards, **dict.fromkeys(names, shards)})
    streams = [Stream(wanted, wanted.sub_topology(each), Layout(warehouse)) for each in names]
    for stream in streams:
        if Control(stream.control).is_held():
            msg = f"{topology.name}/{stream.sub.name}: its driver lives; drain it first"
            raise InvalidArgument(msg)
    for stream in streams:
        yield _resharded(stream, told_by_file=topology.shards_of(stream.sub.name))


def _resharded(stream: Stream, *, told_by_file: int) -> str:
    """Deal out the state of *stream*; *told_by_file* is the number in its topology's file."""
    name = f"{stream.topology.name}/{stream.sub.name}"
    steps = Steps(stream.topology, Reference(stream.layout.warehouse))
    by = sharding(stream.topology, stream.sub, steps) if stream.shards > 1 else None
    home = stream.control / "journal"
    journal = Journal(home, "data") if home.is_dir() else None
    newest = journal.newest() if journal else None
    if journal is None or newest is None:
        return f"{name}: no batch was decided yet, so there is no state"
    old = StateRuns.of(newest.notes)
    if old is not None and len(old) == stream.shards:
        return f"{name}: its state is in {_shards(stream.shards)} already"
    runs = reshard(stream, journal, newest, by, lambda number: StateFiles(stream, journal, number, stream.shards))
    remember(stream.control, runs)
    rows = sum(run.rows for each in runs for run in each.runs)
    source = "the tables of an older version" if old is None else _shards(len(old))
    moved = f"{rows:,} rows of its state after batch {newest.batch_id} went from {source} to {_shards(stream.shards)}"
    done = f"{name}: {moved}"
    if told_by_file == stream.shards:
        return f"{done}; start its driver"
    return f"{done}; its file has shards = {told_by_file}: write {stream.shards}, then start its driver"


def _shards(n: int) -> str:
    return "1 shard" if n == 1 else f"{n} shards"


def _number(text: str) -> int:
    if not text.isdecimal() or int(text) == 0:
        msg = f"a number of shards is 1 or more, got {text!r}"
        raise argparse.ArgumentTypeError(msg)
    return int(text)
