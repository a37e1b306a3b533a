"""`tidemark upgrade`: brings what older versions wrote to this version's format.

A plan has a step for the warehouse, each table and each state that is of an older format. Each step reads what is there
to know what is left, so a command that was killed is run again. Streams must be drained, and no driver of a stream can
start while its steps run.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from deltalake import DeltaTable
from deltalake.exceptions import TableNotFoundError

from tidemark.cli.repair.reshard import redistribute, sharding_of
from tidemark.cli.shared.options import existing_warehouse
from tidemark.cli.shared.output import say_inert
from tidemark.collecting import names_in
from tidemark.control.folder import Control
from tidemark.errors import InvalidArgument
from tidemark.kernels.columns.schemas import arrow_schema
from tidemark.model.checks import CHECKS
from tidemark.model.project.files import Project
from tidemark.model.project.layout import Layout
from tidemark.model.stream import Stream
from tidemark.model.tables.catalog import CHANGES, OPERATOR_STATE, SUPPRESSED, TABLES
from tidemark.model.topology import Topology, load_each, on_processing_time
from tidemark.reports.batch_job import report_lock
from tidemark.reports.batch_job import topology as topology_named
from tidemark.storage.delta.compaction import files_of
from tidemark.storage.delta.datasets import open_to_read, properties_of, schema_of
from tidemark.storage.delta.format import FORMAT, UNSTAMPED, refuse_newer, stamp_in, stamp_warehouse, warehouse_stamp
from tidemark.storage.delta.tables import DeclaredTable, Reference
from tidemark.stream.distributed.resharding import remembered_shards
from tidemark.stream.journal.entries import Journal
from tidemark.stream.operate.steps import Steps
from tidemark.stream.startup.evidence import evidence
from tidemark.stream.startup.soundness import findings
from tidemark.stream.write.commit import declared_tables

CheckLease = Callable[[], None]


@dataclass(frozen=True)
class UpgradeStep:
    """A step of a plan.

    Attributes:
        place: the folder that it changes, below the warehouse.
        seen: the format there; None: not a format, but the state of a stream.
        change: what it does.
        cost: what that takes.
        run: does it. It is given a check that raises if the lease is lost.
    """

    place: str
    seen: int | None
    change: str
    cost: str
    run: Callable[[CheckLease], object]

    @property
    def line(self) -> str:
        """Returns the step as a line of the plan."""
        source = {None: "tables", UNSTAMPED: "no stamp"}.get(self.seen, f"format {self.seen}")
        target = "state files" if self.seen is None else f"format {FORMAT}"
        return f"{self.place}: {source} -> {target}: {self.change}; {self.cost}"


@dataclass(frozen=True)
class UpgradePart:
    """Steps that run under one lease; `lease` takes it."""

    steps: tuple[UpgradeStep, ...]
    lease: Callable[[], AbstractContextManager[CheckLease | None]]


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of the command."""
    text = "name of a topology, or its TOML file (default: all of the project)"
    parser.add_argument("topologies", nargs="*", metavar="TOPOLOGY", help=text)
    parser.add_argument("--dry-run", action="store_true", help="print the plan, and change nothing")


def command(options: argparse.Namespace) -> int:
    """Carries the plan out, and prints each step when it is done.

    A dry run prints the plan alone.
    """
    layout, topologies = Layout(existing_warehouse(options)), _topologies(options.topologies)
    refuse_newer(layout.warehouse)
    parts = [part for part in plan(layout, topologies) if part.steps]
    if not parts:
        say_inert(f"{layout.warehouse}: everything has format {FORMAT}")
    elif options.dry_run:
        for part in parts:
            for step in part.steps:
                say_inert(step.line)
    else:
        refuse_unready(layout, topologies)
        for line in carry_out(parts):
            say_inert(line)
    return 0


def plan(layout: Layout, topologies: list[Topology]) -> Iterator[UpgradePart]:
    """Yields the steps for a warehouse, in their order; nothing is changed.

    Args:
        layout: the warehouse.
        topologies: those whose streams and reports are upgraded.
    """
    yield UpgradePart(tuple(_warehouse_steps(layout.warehouse)), nullcontext)
    for topology in topologies:
        for sub in topology.sub_topologies:
            stream = Stream(topology, sub, layout)
            if stream.control.is_dir():
                steps = (*_table_steps(stream), *_state_steps(stream))
                yield UpgradePart(steps, Control(stream.control).held)
        steps = tuple(_report_steps(layout, topology.name))
        yield UpgradePart(steps, partial(report_lock, layout, topology.name))


def carry_out(parts: list[UpgradePart]) -> Iterator[str]:
    """Carries out the steps of *parts*; yields the line of each afterwards."""
    for part in parts:
        with part.lease() as check_lease:
            for step in part.steps:
                step.run(check_lease or _unchecked)
                yield step.line


def refuse_unready(layout: Layout, topologies: list[Topology]) -> None:
    """Raises InvalidArgument if a stream of *topologies* runs or is unsound."""
    for topology in topologies:
        for sub in topology.sub_topologies:
            stream, name = Stream(topology, sub, layout), f"{topology.name}/{sub.name}"
            if not stream.control.is_dir():
                continue
            # A checkpoint has nothing of which an upgrade makes use.
            if any(not finding.fault.startswith("checkpoint") for finding in findings(evidence(stream))):
                msg = f"{name}: it cannot continue; `tidemark doctor {topology.name} {sub.name}` has the remedies"
                raise InvalidArgument(msg)
            if Control(stream.control).is_held():
                msg = f"{name}: its driver is running; drain it first (`tidemark down {topology.name}`)"
                raise InvalidArgument(msg)


def _topologies(names: list[str]) -> list[Topology]:
    """Returns the topologies called *names*; all of the project if empty."""
    if names:
        topologies = list(map(topology_named, names))
    else:
        each = load_each(Project.here().topologies).values()
        topologies = [topology for topology in each if isinstance(topology, Topology)]
    return [version for topology in topologies for version in (topology, on_processing_time(topology))]


def _warehouse_steps(warehouse: Path) -> Iterator[UpgradeStep]:
    seen = warehouse_stamp(warehouse).format
    if seen < FORMAT:
        # First, so that an older version refuses before anything else is of the new format.
        yield UpgradeStep("warehouse", seen, "stamp", "writes a small file", lambda _: stamp_warehouse(warehouse))


def _table_steps(stream: Stream) -> Iterator[UpgradeStep]:
    """Yields a step for each older table of *stream*."""
    schemas = Steps(stream.topology, Reference(stream.layout.warehouse)).schemas
    for declared in declared_tables(stream.home, stream.sub, schemas):
        yield from _steps_of_table(declared, stream.layout.warehouse)


def _report_steps(layout: Layout, topology: str) -> Iterator[UpgradeStep]:
    """Yields a step for each older report of *topology*."""
    for log in sorted(layout.reports(topology).glob("*/_delta_log")):
        table = TABLES.get(log.parent.name)
        if table is not None:
            checks = CHECKS.get(table.name, {})
            declared = DeclaredTable(log.parent, arrow_schema(table), table.row, checks=checks)
            yield from _steps_of_table(declared, layout.warehouse)


def _steps_of_table(declared: DeclaredTable, warehouse: Path) -> Iterator[UpgradeStep]:
    try:
        table = open_to_read(declared.path)
    except TableNotFoundError:
        return
    stamp = stamp_in(properties_of(table))
    stamp.refuse_newer(declared.path)
    there = {*names_in(schema_of(table).fields)}
    missing = [field.name for field in declared.schema if field.name not in there]
    if stamp.format < FORMAT or missing:
        columns = f"add the columns {', '.join(missing)}; " if missing else ""
        cost = "reads all rows if a check is new" if declared.checks else "reads no rows"
        place = str(declared.path.relative_to(warehouse))
        yield UpgradeStep(place, stamp.format, f"{columns}stamp", cost, lambda _: declared.create())


def _state_steps(stream: Stream) -> Iterator[UpgradeStep]:
    """Yields a step if only tables have the state of *stream*."""
    home = stream.control / "journal"
    newest = Journal(home, "data").newest() if home.is_dir() else None
    if newest is None or newest.notes.states is not None or remembered_shards(stream, newest) is not None:
        return
    tables = [stream.home / table.name for table in (CHANGES, OPERATOR_STATE, SUPPRESSED)]
    size = sum(_bytes(path) for path in tables)
    shards = f"{stream.shards} shards" if stream.shards > 1 else "1 shard"
    place = str(stream.control.relative_to(stream.layout.warehouse))
    change = f"load the state after batch {newest.batch_id} and write it for {shards}"
    cost = f"reads {size:,} bytes of tables, and needs memory for the whole state"
    yield UpgradeStep(place, None, change, cost, partial(_load_state, stream))


def _load_state(stream: Stream, check_lease: CheckLease) -> None:
    journal = Journal(stream.control / "journal", "data")
    redistribute(stream, journal, sharding_of(stream), stream.shards, lambda _: None, check_lease)


def _bytes(path: Path) -> int:
    if not DeltaTable.is_deltatable(str(path)):
        return 0
    return sum(file.bytes for file in files_of(path))


def _unchecked() -> None:
    """Checks nothing: reports have no lease on a disk."""
