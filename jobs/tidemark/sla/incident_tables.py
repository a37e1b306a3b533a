"""Reads and writes the incidents of a topology, through delta-rs (ring 2)."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import polars as pl
import polars.selectors as cs
import pyarrow.compute as pc
from deltalake import DeltaTable

from tidemark.datasets import dataset_of
from tidemark.delta import again_after_others
from tidemark.locks import locked, own_folder
from tidemark.object_path import ObjectPath
from tidemark.report.batch_job import AT_MOST_S, writing
from tidemark.report.report_tables import lies_in, opened, replace_in, replace_rows, rows_in
from tidemark.sla.incident_facts import (
    PAST,
    acknowledged,
    changes,
    checks_missed,
    gap_ms,
    in_time,
    looks_back_ms,
    open_incidents,
)
from tidemark.spec.channel_spec import Channel
from tidemark.spec.intervals import Interval, is_text, utc
from tidemark.spec.layout import Layout
from tidemark.spec.retention import DAY_MS
from tidemark.spec.sla_spec import SlaSpec
from tidemark.spec.tables import DELIVERIES, INCIDENTS, SLA_RESULTS, Table
from tidemark.spec.topology import Topology

GIVE_UP_MS = DAY_MS
"""For so long a change of an incident that is over is tried to be told."""


def is_checked_after(layout: Layout, topology: str, at_ms: int, run_id: str) -> bool:
    """Whether another run than *run_id* has checked *topology* for an instant after *at_ms*."""
    return not _checked_by_others(layout, topology, run_id, pc.field("checked_at") > utc(at_ms)).is_empty()


def checked_before(layout: Layout, topology: str, at_ms: int, run_id: str) -> int | None:
    """The last instant before *at_ms* for which another run than *run_id* has checked *topology*; None: there is none.

    Epoch ms.
    """
    found = _checked_by_others(layout, topology, run_id, pc.field("checked_at") < utc(at_ms))
    newest = found.dt.epoch("ms").max()
    return newest if isinstance(newest, int) else None


def _checked_by_others(layout: Layout, topology: str, run_id: str, when: pc.Expression) -> pl.Series:
    """The instants for which other runs than *run_id* have checked *topology*, of those that *when* is true of."""
    results = _stored(SLA_RESULTS, layout, topology)
    return rows_in(results, when & (pc.field("run_id") != run_id), columns=["checked_at"])["checked_at"]


def follow_up(
    layout: Layout,
    topology: Topology,
    specs: Sequence[SlaSpec],
    *,
    at_ms: int,
    run_id: str,
    unusable: Collection[str] = (),
) -> list[dict[str, Any]]:
    """Write the changes of incidents that follow from the checks up to *at_ms*, as *run_id*'s; which those are.

    Again: none.
    """
    results = _stored(SLA_RESULTS, layout, topology.name)
    recent = lies_in("checked_at", Interval(at_ms - looks_back_ms(specs), at_ms + 1))
    checks, last_ms = _in_ms(rows_in(results, recent)), _last_check_ms(results, at_ms)

    def follow(known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        missed = checks_missed(topology, last_ms, known, at_ms=at_ms)
        found = changes(specs, checks, [*known, *missed], at_ms=at_ms, gap_ms=gap_ms(topology), unusable=unusable)
        return [{**row, "run_id": run_id} for row in (*missed, *found)]

    return _add(layout, topology.name, follow)


def miss(layout: Layout, topology: Topology, *, at_ms: int) -> list[dict[str, Any]]:
    """Write that a check of the SLAs of *topology* is due at *at_ms*, if none was made and that is not known yet."""
    results = _stored(SLA_RESULTS, layout, topology.name)
    last_ms = _last_check_ms(results, at_ms)
    return _add(layout, topology.name, lambda known: checks_missed(topology, last_ms, known, at_ms=at_ms, is_due=True))


def _last_check_ms(results: DeltaTable, at_ms: int) -> int | None:
    """The newest instant before *at_ms* for which there was a check, however long ago, that was not for the past."""
    before = (pc.field("checked_at") < utc(at_ms)) & (pc.field("quiet").is_null() | (pc.field("quiet") != PAST))
    times = pl.DataFrame(dataset_of(results).to_table(["checked_at"], filter=before))["checked_at"]
    newest = times.dt.epoch("ms").max()
    return newest if isinstance(newest, int) else None


def _add(
    layout: Layout, topology: str, found: Callable[[list[dict[str, Any]]], list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """Write the rows that *found* makes of those that are known."""

    def write() -> list[dict[str, Any]]:
        stored = _stored(INCIDENTS, layout, topology)
        rows = found(_in_ms(rows_in(stored)))
        if rows:
            replace_in(stored, rows, INCIDENTS, where=_are_those(rows))
        return rows

    return again_after_others(write)


def acknowledge(layout: Layout, topology: str, incident: str, *, by: str, note: str, at_ms: int) -> bool:
    """Write down that *by* looks after *incident*; whether nobody had done so before. Raises InvalidArgument."""

    def found(known: list[dict[str, Any]]) -> list[dict[str, Any]]:
        row = acknowledged(known, incident, by=by, note=note, at_ms=at_ms)
        return [] if row is None else [row]

    return bool(_add(layout, topology, found))


def made_by(layout: Layout, topology: str, run_id: str) -> list[dict[str, Any]]:
    """The changes of incidents that the check of *run_id* made, fit for JSON: instants in ISO 8601."""
    stored = _stored(INCIDENTS, layout, topology)
    rows = rows_in(stored, pc.field("run_id") == run_id).sort("at", "incident")
    return rows.with_columns(cs.datetime().dt.to_string("iso:strict")).to_dicts()


def untold(layout: Layout, topology: str, channel: Channel, *, now_ms: int) -> list[dict[str, Any]]:
    """The changes of incidents that *channel* is for and has not taken, the oldest first, instants as epoch ms.

    Of incidents that are over those are left out that are older than GIVE_UP_MS: a channel that is new is not told of
    years.
    """
    known = _in_ms(rows_in(_stored(INCIDENTS, layout, topology)))
    still_open = open_incidents(known)
    recent = [row for row in known if row["incident"] in still_open or row["at"] >= now_ms - GIVE_UP_MS]
    taken = rows_in(_stored(DELIVERIES, layout, topology), pc.field("channel") == channel.name)
    told = set(taken.select("incident", "change").iter_rows())
    found = [row for row in recent if channel.tells(row) and (row["incident"], row["change"]) not in told]
    return sorted(found, key=in_time)


@contextmanager
def telling(layout: Layout, topology: str, channel: Channel) -> Iterator[None]:
    """Hold the lock of *channel* of *topology*, so that one process at a time delivers to it.

    Raises LockHeld when another process does so for AT_MOST_S.
    """
    with writing(layout, topology):
        home = layout.report_control(topology)
        if isinstance(home, ObjectPath):  # where the lease of `writing` is one for all
            yield
            return
        own_folder(home)
        with locked(home / f"{channel.name}.lock", within_s=AT_MOST_S):
            yield


def told(layout: Layout, change: Mapping[str, Any], channel: Channel, *, at_ms: int, run_id: str) -> None:
    """Write down that *channel* has taken *change*."""
    row = {name: change[name] for name in ("incident", "topology", "change")}
    where = f"{_are_those([change])} AND {is_text('channel', channel.name)}"
    replace_rows(
        [{**row, "channel": channel.name, "delivered_at": at_ms, "run_id": run_id}],
        DELIVERIES,
        layout.report_table(change["topology"], DELIVERIES.name),
        where=where,
    )


def _stored(table: Table, layout: Layout, topology: str) -> DeltaTable:
    return opened(table, layout.report_table(topology, table.name))


def _are_those(rows: Sequence[Mapping[str, Any]]) -> str:
    each = (f"({is_text('incident', row['incident'])} AND {is_text('change', row['change'])})" for row in rows)
    return f"({' OR '.join(each)})"


def _in_ms(rows: pl.DataFrame) -> list[dict[str, Any]]:
    return rows.with_columns(cs.datetime().dt.epoch("ms")).to_dicts()
