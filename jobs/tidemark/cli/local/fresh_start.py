"""Deletes all that a topology has written, once a person has agreed."""

from __future__ import annotations

import argparse
import shutil
import sys
from collections.abc import Iterator
from functools import partial
from pathlib import Path, PurePosixPath

from tidemark.cli.export.publish import FILE as VIEWS
from tidemark.cli.local import down
from tidemark.cli.shared.local import Home
from tidemark.cli.shared.output import say_inert
from tidemark.cli.shared.plan import RepairPlan, carry_out
from tidemark.cli.shared.streams import valid_topologies
from tidemark.control.folder import Control
from tidemark.errors import InvalidArgument
from tidemark.maintenance.sizes import WrittenTable, sizes
from tidemark.model.project.layout import Layout
from tidemark.model.settings.lengths import counted
from tidemark.model.tables.catalog import DECISIONS
from tidemark.model.topology import Topology
from tidemark.query.text_table import format_table
from tidemark.storage.object_path import ObjectPath

SIZES = ("stream", "table", "rows", "bytes")


def start_over(options: argparse.Namespace, home: Home, warehouse: Path, topology: Topology) -> bool:
    """Deletes what *topology* has written, once a person has agreed; returns False if a stream of it does not end.

    Raises:
        InvalidArgument: the person has not agreed, or cannot be asked.
        PlanChanged: it is not what the dry run of `--plan` showed.
    """
    layout = Layout(warehouse)
    planned = partial(start_over_plan, layout, topology)
    if not options.dry_run:
        _ask(planned(), topology.name, agreed=options.yes or options.plan is not None)
        # A driver that goes on would write what is deleted under it.
        if down.drain(home, warehouse, [topology.name]):
            return False
    say_inert(carry_out(planned, options, layout, topology.name, note=options.note))
    return True


def _ask(plan: RepairPlan, name: str, *, agreed: bool) -> None:
    if agreed or not plan.is_needed:
        return
    say_inert(plan.effect)
    if not sys.stdin.isatty():
        msg = "nothing was deleted, since nobody can be asked here; add --yes, or --plan with the id of a --dry-run"
        raise InvalidArgument(msg)
    if input(f"type {name} to delete this: ").strip() != name:
        msg = f"nothing was deleted: the answer was not {name}"
        raise InvalidArgument(msg)


def start_over_plan(layout: Layout, topology: Topology) -> RepairPlan:
    """Returns the plan to delete the tables and the control folder of *topology*, but for what people have decided.

    Its effect names tables with their sizes, and whoever else reads them. Topics, and tables of others, stay.
    """
    found = sizes(layout, topology)
    found.pop(WrittenTable(None, DECISIONS.name), None)
    folders = [*_folders(layout, topology.name)]
    rows = [(place.sub_topology or "batch jobs", place.table, size.rows, size.bytes) for place, size in found.items()]
    whole = f"{counted(len(rows), 'table')} of {sum(row[3] for row in rows):,} bytes"
    lines = [
        f"{topology.name} starts over: {whole}, its state, its progress and its pages are deleted",
        *([format_table(SIZES, rows)] if rows else []),
        *_readers(layout, topology),
        "topics stay, and are read from where starting_offsets says",
    ]

    def apply() -> str:
        for folder in folders:
            _remove(folder)
        return f"{topology.name}: {whole} and its progress are deleted"

    return RepairPlan(
        topology=topology.name,
        sub_topology=None,
        effect="\n".join(lines) if folders else f"{topology.name} has written nothing yet",
        state=sorted(map(str, found)),
        apply=apply if folders else lambda: f"{topology.name} has written nothing yet",
        is_needed=bool(folders),
    )


def _folders(layout: Layout, topology: str) -> Iterator[Path]:
    """Yields what is deleted, the progress last: a deletion that is killed is begun again, and no driver starts before.

    The decisions of people stay, and so does the lock that this command holds.
    """
    kept = {layout.report_table(topology, DECISIONS.name), layout.repair_control(topology)}
    for parent in (layout.stream(topology, ""), layout.reports(topology), layout.control(topology, "")):
        if parent.is_dir():
            yield from (path for path in sorted(parent.iterdir()) if path not in kept)


def _remove(path: Path) -> None:
    if isinstance(path, ObjectPath):
        for each in [path] if path.is_file() else path.rglob("*"):
            each.unlink(missing_ok=True)
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _readers(layout: Layout, topology: Topology) -> Iterator[str]:
    """Yields a line for each operator of another topology that reads a table of *topology*, and for views."""
    own = layout.stream(topology.name, "")
    for other in valid_topologies(layout):
        for sub in other.sub_topologies if other.name != topology.name else ():
            runs = ", which runs," if Control(layout.control(other.name, sub.name)).is_held() else ""
            # A stream knows its table by the id, and does not go on with another one.
            becomes = 'refuses the new one: give the source another name and starting_offsets = "earliest"'
            read = [(each.name, each.delta, becomes) for each in sub.outside_sources]
            read += [(each.name, each.joined_delta, "finds it empty") for each in sub.operators]
            for operator, table, becomes in read:
                if table is not None and (layout.warehouse / table).is_relative_to(own):
                    yield f"{other.name}.{operator}{runs} reads {PurePosixPath(table).name}, and {becomes}"
    if (layout.warehouse / VIEWS).is_file():
        yield f"views of {VIEWS} read its tables: publish them again once it runs"
