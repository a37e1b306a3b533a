"""`tidemark requeue --late --reopen`: puts late records into closed windows.

Each record is taken in once.
"""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl

from tidemark.cli.repair.requeue_late import REASON as LATE
from tidemark.cli.repair.requeue_late import reopened_places, requested_places, sources_of
from tidemark.cli.repair.set_aside import dead_letters, requeued_rows, rows_in_span
from tidemark.cli.shared.plan import RepairPlan
from tidemark.clock import Clock
from tidemark.control.folder import Control, WindowReopening
from tidemark.errors import InvalidArgument
from tidemark.kernels.aggregates.windows import ends_by, in_windows
from tidemark.kernels.columns.schemas import arrow_schema, rows_of
from tidemark.model.kinds.operator import Operator
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.windows import Shape, Windows
from tidemark.model.tables.catalog import REQUEUED
from tidemark.model.topology import SubTopology, Topology
from tidemark.reports.batch_job import report_lock
from tidemark.selection import names_in
from tidemark.semantics.dead_letters import DeadLetterKind
from tidemark.storage.delta.tables import append, create
from tidemark.stream.decide.reopenings import LATE_ID, forgotten
from tidemark.stream.startup.unread import newest_progress

REOPENED = "reopened"
"""Reason of reopened records in the table `requeued`."""
MOST_LISTED = 20


@dataclass(frozen=True)
class _LateRows:
    """The *n* late rows of one operator.

    `taken` are those that its windows can take in; the windows of the `forgotten` ones have no state any more.
    """

    sub: SubTopology
    operator: str
    taken: pl.DataFrame
    forgotten: pl.DataFrame
    n: int


def reopen_plan(options: argparse.Namespace, topology: Topology, layout: Layout, clock: Clock) -> RepairPlan:
    """Returns the plan to put late records into closed windows.

    Args:
        options: the command line.
        topology: the topology.
        layout: the warehouse.
        clock: epoch ms UTC.

    Returns:
        Its effect are the numbers of records that are taken in, and the records that cannot be.

    Raises:
        InvalidArgument: the operator that was *options* for cannot be reopened, or no record can any more.
    """
    chosen, refused = [], []
    for sub in topology.sub_topologies:
        late = _late(options, topology, sub, layout)
        own = {*names_in(sub.operators)}
        names = {options.operator} if options.operator else {*late["operator"].unique()}
        # An operator that moved to another sub-topology has late records in both, but only one driver.
        for name in sorted(own & names):
            if why := _refusal(topology.operators[name]):
                refused.append(f"operators.{name}: {why}")
            else:
                chosen.append(_choose(topology, sub, name, late.filter(pl.col("operator") == name), layout))
    if options.operator and not chosen and not refused:
        windowed = [o.name for o in topology.operators.values() if _refusal(o) is None]
        msg = f"--operator {options.operator}: is not an operator of {topology.name}; known: {', '.join(windowed)}"
        raise InvalidArgument(msg)
    for each in chosen:
        refused += _forgotten_lines(each)
    if refused and not any(each.taken.height for each in chosen):
        raise InvalidArgument("\n".join(refused))

    def apply() -> str:
        with report_lock(layout, topology.name):
            for each in chosen:
                _request(topology, each, layout, clock)
        return _said(chosen, refused, "are")

    return RepairPlan(
        topology=topology.name,
        sub_topology=None,
        effect=_said(chosen, refused, "would be"),
        state=[(each.operator, each.taken.select(*LATE_ID).rows()) for each in chosen],
        apply=apply,
        is_needed=any(each.taken.height for each in chosen),
    )


def _said(chosen: list[_LateRows], refused: list[str], verb: str) -> str:
    lines = [
        f"{each.operator}: {each.taken.height} of {each.n} late records {verb} taken in again with the next batch of "
        f"{each.sub.name}"
        for each in chosen
    ]
    return "\n".join([*lines, *refused]) or "no late records"


def _late(options: argparse.Namespace, topology: Topology, sub: SubTopology, layout: Layout) -> pl.DataFrame:
    """Returns the late records of *sub* that were *options* for."""
    return rows_in_span(dead_letters(layout.stream(topology.name, sub.name), DeadLetterKind.LATE), options)


def _refusal(operator: Operator) -> str | None:
    """Returns the reason against a reopening of *operator*; None without one."""
    windows = operator.windows
    if windows is None:
        return (
            f"a {operator.kind} without windows cannot be reopened; `tidemark requeue --late` sends its late records "
            "to the topic again"
        )
    if windows.shape is Shape.SESSION:
        return (
            "a closed session cannot be reopened: its bounds depend on all of its records; a longer allowed_lateness "
            "accepts later records from now on"
        )
    if windows.reopen_for_ms is None:
        return (
            'has no reopen_for, so the states of closed windows are gone; write reopen_for = "1 d" and restart the '
            "driver: windows that close from then on can be reopened"
        )
    return None


def _choose(topology: Topology, sub: SubTopology, name: str, late: pl.DataFrame, layout: Layout) -> _LateRows:
    """Returns the *late* rows of an operator that still wait.

    The operator is called *name*. The rows were neither asked for before, nor sent to their topic again.
    """
    operator = topology.operators[name]
    assert operator.windows is not None
    waiting = late.join(requested_places(topology, sub.name, layout), on=["operator", *LATE_ID], how="anti")
    waiting = waiting.join(_sent_places(topology, name, layout), on=["partition", "offset"], how="anti")
    progress = newest_progress(layout.control(topology.name, sub.name))
    forgotten_ms = forgotten(sub.windows(), progress)
    is_gone = _is_forgotten(waiting, operator.windows, forgotten_ms.get(name))
    return _LateRows(sub, name, waiting.filter(~is_gone), waiting.filter(is_gone), late.height)


def _sent_places(topology: Topology, operator: str, layout: Layout) -> pl.DataFrame:
    """Returns partition and offset of records that are in their topic again.

    They are late records of *operator*.
    """
    sources = [*sources_of(topology, operator)]
    late = pl.col("reason") == LATE
    rows = requeued_rows(layout, topology.name)
    sent_to = rows["topic"].unique().drop_nulls()
    topics = [topic for topic in sent_to if any(source.reads(topic) for source in sources)]
    return rows.filter(late, pl.col("topic").is_in(topics)).select("partition", "offset")


def _is_forgotten(late: pl.DataFrame, windows: Windows, forgotten_ms: int | None) -> pl.Series:
    """Returns True for each *late* record without states of its windows."""
    at = late.select(_row=pl.int_range(pl.len()), _timestamp_ms=pl.col("timestamp").dt.epoch("ms"))
    kept = in_windows(at, windows).filter(~ends_by(forgotten_ms))
    return ~pl.int_range(late.height, eager=True).is_in(kept["_row"].implode())


def _forgotten_lines(chosen: _LateRows) -> Iterator[str]:
    """Yields lines on records that can only stay in `late_records`."""
    rows = chosen.forgotten
    if rows.is_empty():
        return
    yield (
        f"{chosen.operator}: {rows.height} of {chosen.n} late records refused: the states of their windows are gone "
        "(closed before reopen_for was set, or longer ago); they stay in late_records"
    )
    as_text = pl.col("key").cast(pl.String)
    for row in rows.head(MOST_LISTED).with_columns(as_text).iter_rows(named=True):
        at = iso(round(row["timestamp"].timestamp() * 1_000))
        yield f"  batch {row['batch_id']}, partition {row['partition']}, offset {row['offset']}, key {row['key']}, {at}"
    if rows.height > MOST_LISTED:
        yield f"  and {rows.height - MOST_LISTED} more"


def _request(topology: Topology, chosen: _LateRows, layout: Layout, clock: Clock) -> None:
    """Asks the driver to take in records, and adds them to `requeued`."""
    # A process that is killed in between records it the next time.
    control = Control(layout.control(topology.name, chosen.sub.name))
    if chosen.taken.height:
        late = tuple(chosen.taken.select(*LATE_ID).iter_rows())
        control.request_reopening(
            WindowReopening(id=uuid.uuid4().hex, operator=chosen.operator, late=late, at_ms=clock())
        )
    path = layout.report_table(topology.name, REQUEUED.name)
    create(path, arrow_schema(REQUEUED), description=REQUEUED.row)
    waiting = control.reopenings()
    same = {"sub_topology": chosen.sub.name, "reason": REOPENED, "topology": topology.name, "requeued_at": clock()}
    requested_before = requested_places(topology, chosen.sub.name, layout)
    reopened = reopened_places(topology, chosen.sub.name, layout)
    new = requested_before.join(reopened, on=requested_before.columns, how="anti")
    new = new.select("partition", "offset", source="operator", late_batch="batch_id")
    append(path, rows_of(REQUEUED, new, **same))
    for id_ in waiting:
        control.reopening_written_down(id_)
