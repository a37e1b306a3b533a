"""`tidemark requeue --late --reopen`: have closed windows take in the late records of theirs, each of them once."""

from __future__ import annotations

import argparse
import uuid
from collections.abc import Iterator
from dataclasses import dataclass

import polars as pl
from deltalake import DeltaTable

from tidemark.cli.requeue_late import REASON as LATE
from tidemark.cli.requeue_late import asked_before, reopened, sources_of
from tidemark.cli.reset_time import newest_progress
from tidemark.cli.set_aside import in_time, requeued, with_decided_at
from tidemark.clock import Clock
from tidemark.control import Control, Reopening
from tidemark.delta import append, create
from tidemark.errors import InvalidArgument
from tidemark.kernels.schemas import arrow_schema, rows_of
from tidemark.kernels.windows import ends_by, in_windows
from tidemark.spec.intervals import iso
from tidemark.spec.layout import Layout
from tidemark.spec.operators import Aggregate, Operator, Shape, Windows
from tidemark.spec.tables import LATE_RECORDS, REQUEUED
from tidemark.spec.topology import SubTopology, Topology
from tidemark.stream.reopenings import PLACE, forgotten

REOPENED = "reopened"
"""The reason of such records in `requeued`."""
MOST_LISTED = 20


@dataclass(frozen=True)
class _Chosen:
    """The late rows of one operator: those that its windows take in, and those whose windows are `forgotten`."""

    sub: SubTopology
    operator: str
    taken: pl.DataFrame
    forgotten: pl.DataFrame
    n: int


def reopen(asked: argparse.Namespace, topology: Topology, layout: Layout, clock: Clock) -> str:
    """Ask the drivers to take late records in again; the answer says which are, and which cannot be.

    Raises:
        InvalidArgument: what was *asked* for cannot be reopened, or none of it can any more.
    """
    chosen, refused = [], []
    for sub in topology.sub_topologies:
        late = _late(asked, topology, sub, layout)
        for name in [asked.operator] if asked.operator else sorted(late["operator"].unique()):
            if name not in {o.name for o in sub.operators}:
                continue
            if why := _refusal(topology.operators[name]):
                refused.append(f"operators.{name}: {why}")
            else:
                chosen.append(_chosen(topology, sub, name, late.filter(pl.col("operator") == name), layout))
    if asked.operator and not chosen and not refused:
        windowed = [o.name for o in topology.operators.values() if _refusal(o) is None]
        msg = f"--operator {asked.operator}: is not an operator of {topology.name}; known: {', '.join(windowed)}"
        raise InvalidArgument(msg)
    refused += [line for each in chosen for line in _forgotten_lines(each)]
    if refused and not any(each.taken.height for each in chosen):
        raise InvalidArgument("\n".join(refused))
    if not asked.dry_run:
        for each in chosen:
            _request(topology, each, layout, clock)
    verb = "would be" if asked.dry_run else "are"
    lines = [
        f"{each.operator}: {each.taken.height} of {each.n} late records {verb} taken in again with the next batch of "
        f"{each.sub.name}"
        for each in chosen
    ]
    return "\n".join([*lines, *refused]) or "no late records"


def _late(asked: argparse.Namespace, topology: Topology, sub: SubTopology, layout: Layout) -> pl.DataFrame:
    """The late records of *sub* that were *asked* for."""
    path = layout.stream_table(topology.name, sub.name, LATE_RECORDS.name)
    if not DeltaTable.is_deltatable(str(path)):
        return pl.DataFrame(arrow_schema(LATE_RECORDS).empty_table())
    return in_time(with_decided_at(path), asked)


def _refusal(operator: Operator) -> str | None:
    """Why no window of *operator* can be reopened."""
    windows = operator.windows if isinstance(operator, Aggregate) else None
    if windows is None:
        return (
            f"a {operator.kind} without windows cannot be reopened; `tidemark requeue --late` sends what it found late "
            "to the topic again"
        )
    if windows.shape is Shape.SESSION:
        return (
            "a closed session cannot be reopened: its bounds depend on all of its records; a longer allowed_lateness "
            "takes later records in from now on"
        )
    if windows.reopen_for_ms is None:
        return (
            'has no reopen_for, so the states of closed windows are gone; write reopen_for = "1 d" and restart the '
            "driver: windows that close from then on can be reopened"
        )
    return None


def _chosen(topology: Topology, sub: SubTopology, name: str, late: pl.DataFrame, layout: Layout) -> _Chosen:
    """The *late* rows of the operator *name* that were not asked for before, nor sent to their topic again."""
    operator = topology.operators[name]
    assert isinstance(operator, Aggregate)
    assert operator.windows is not None
    waiting = late.join(asked_before(topology, sub.name, layout), on=["operator", *PLACE], how="anti")
    waiting = waiting.join(_sent(topology, name, layout), on=["partition", "offset"], how="anti")
    progress = newest_progress(layout, topology.name, sub.name)
    known = forgotten(sub.windows(), progress)
    is_gone = _is_forgotten(waiting, operator.windows, known.get(name))
    return _Chosen(sub, name, waiting.filter(~is_gone), waiting.filter(is_gone), late.height)


def _sent(topology: Topology, operator: str, layout: Layout) -> pl.DataFrame:
    """Partition and offset of the records of *operator* that are in their topic again."""
    topics = [source.topic for source in sources_of(topology, operator)]
    late = pl.col("reason") == LATE
    rows = requeued(layout.report_table(topology.name, REQUEUED.name))
    return rows.filter(late, pl.col("topic").is_in(topics)).select("partition", "offset").collect()


def _is_forgotten(late: pl.DataFrame, windows: Windows, forgotten_ms: int | None) -> pl.Series:
    """Whether the states of all windows of each *late* record are gone."""
    at = late.select(_row=pl.int_range(pl.len()), _timestamp_ms=pl.col("timestamp").dt.epoch("ms"))
    kept = in_windows(at, windows).filter(~ends_by(forgotten_ms))
    return ~pl.int_range(late.height, eager=True).is_in(kept["_row"].implode())


def _forgotten_lines(chosen: _Chosen) -> Iterator[str]:
    """Which records cannot be taken in any more; all of them stay in `late_records`."""
    rows = chosen.forgotten
    if rows.is_empty():
        return
    yield (
        f"{chosen.operator}: {rows.height} of {chosen.n} late records refused: the states of their windows are gone "
        "(closed before reopen_for was set, or longer ago); they stay in late_records"
    )
    for row in rows.head(MOST_LISTED).iter_rows(named=True):
        at = iso(round(row["timestamp"].timestamp() * 1_000))
        yield f"  batch {row['batch_id']}, partition {row['partition']}, offset {row['offset']}, key {row['key']}, {at}"
    if rows.height > MOST_LISTED:
        yield f"  and {rows.height - MOST_LISTED} more"


def _request(topology: Topology, chosen: _Chosen, layout: Layout, clock: Clock) -> None:
    """Ask the driver, then write down what it was asked; who is killed in between writes it down the next time."""
    control = Control(layout.control(topology.name, chosen.sub.name))
    if chosen.taken.height:
        late = tuple(chosen.taken.select(*PLACE).iter_rows())
        control.request_reopening(Reopening(id=uuid.uuid4().hex, operator=chosen.operator, late=late, at_ms=clock()))
    path = layout.report_table(topology.name, REQUEUED.name)
    create(path, arrow_schema(REQUEUED), description=REQUEUED.row)
    waiting = control.reopenings()
    same = {"sub_topology": chosen.sub.name, "reason": REOPENED, "topology": topology.name, "requeued_at": clock()}
    asked = asked_before(topology, chosen.sub.name, layout)
    new = asked.join(reopened(topology, chosen.sub.name, layout), on=asked.columns, how="anti")
    new = new.select("partition", "offset", source="operator", late_batch="batch_id")
    append(path, rows_of(REQUEUED, new, **same))
    for id_ in waiting:
        control.reopening_written_down(id_)
