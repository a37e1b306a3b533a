"""The steps of a check that need no great-expectations: measure, judge, explain, record, notify.

A process that imports this module starts in a second, and may make checks as long as it lives.
"""

from __future__ import annotations

from collections.abc import Collection, Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import Any

import polars as pl

from tidemark.facts.answers import Row, Tables, answers_over
from tidemark.facts.heartbeat_facts import HeartbeatFacts
from tidemark.facts.latency_facts import counted_batches
from tidemark.facts.liveness import drivers_of
from tidemark.facts.measures import sla_facts
from tidemark.facts.measures.fact_kinds import Fact
from tidemark.facts.measures.groups import GroupsSeen, groups_seen
from tidemark.facts.measures.merges import merged_facts
from tidemark.facts.measures.newest_times import newest_ms
from tidemark.facts.measures.objectives import objective_facts
from tidemark.facts.measures.observed_latencies import observed_latencies
from tidemark.facts.report_rows import report_rows
from tidemark.model.measures.completeness import COMPLETENESS
from tidemark.model.measures.contract import CONTRACTS_OVER_MS
from tidemark.model.measures.staleness import STALENESS
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, is_text
from tidemark.model.sla_event_rows import rows_of
from tidemark.model.sla_events import SlaResult
from tidemark.model.slas.sla_spec import CLOCKS_APART_MS, SlaSpec
from tidemark.model.tables.catalog import BATCHES, EXPECTATION_RESULTS, HEARTBEATS, LATENCY_ROLLUP, SLA_RESULTS
from tidemark.model.topology import Topology
from tidemark.selection import names_in
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Sla
from tidemark.sla.incidents.changes import excluded_because
from tidemark.sla.incidents.explaining import Explain, Explained
from tidemark.sla.incidents.tables import (
    checked_before,
    follow_up,
    found_before,
    in_ms,
    is_checked_after,
    open_account_before,
)
from tidemark.sla.measures.crossings import with_crossings
from tidemark.sla.measures.progress import unknown_if_behind
from tidemark.sla.measures.status import Status, statuses
from tidemark.sla.page import write_sla_page
from tidemark.sla.sla_text import result_of
from tidemark.sla.watched import ReadTable, read_watched, watched_statuses
from tidemark.storage.delta.report_tables import replace_rows
from tidemark.storage.location import is_missing
from tidemark.storage.warehouse import stream_tables


@dataclass(frozen=True, kw_only=True)
class CheckTime:
    """The instant of a check, and whether other checks were made before it or for later instants.

    Attributes:
        at_ms: the instant of the check, epoch ms.
        run_id: the run that makes it.
        is_past: another run has checked a later instant, so this check changes no incident.
        before_ms: the last earlier instant that another run checked, epoch ms; None if there is none.
    """

    at_ms: int
    run_id: str
    is_past: bool
    before_ms: int | None


def check_time(layout: Layout, topology: str, *, at_ms: int, run_id: str) -> CheckTime:
    """Returns the time of the check of *run_id* for *at_ms*, compared with the checks that are stored."""
    return CheckTime(
        at_ms=at_ms,
        run_id=run_id,
        is_past=is_checked_after(layout, topology, at_ms, run_id),
        before_ms=checked_before(layout, topology, at_ms, run_id),
    )


@dataclass(frozen=True, kw_only=True)
class JudgedTables:
    """The verdicts on the contracts of tables.

    Attributes:
        contracts: rows of `expectation_results` about them.
        readable: paths of the tables that can be read.
    """

    contracts: Sequence[Row]
    readable: Container[Path]


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a check has measured.

    Attributes:
        layout: paths of the warehouse.
        topology: the topology that promises the SLAs.
        specs: the SLAs to judge.
        time: the time of the check.
        tables: the tables that can be read.
        judged: the verdicts on their contracts.
        facts: the measurements that the SLAs need.
        accounts: rows of `sla_facts.accounts`, by which completeness is judged.
        groups: by name of an SLA with `by`, the groups of rows for which it is judged separately.
        watched: what was read of watched tables, by the subjects of the SLAs; only they are judged by it.
    """

    layout: Layout
    topology: Topology
    specs: Sequence[SlaSpec]
    time: CheckTime
    tables: Tables
    judged: JudgedTables
    facts: Sequence[Fact]
    accounts: Sequence[Row]
    groups: Mapping[str, GroupsSeen]
    watched: Mapping[str, ReadTable] = field(default_factory=dict)

    def status_at(self, at_ms: int) -> list[Status]:
        """Returns the status of each SLA at *at_ms* by these facts, without the instants of crossings."""
        if self.topology.is_watch:
            until_ms = at_ms if self.time.is_past else None
            return watched_statuses(self.specs, self.watched, at_ms=at_ms, until_ms=until_ms)
        return statuses(
            self.specs,
            self.topology,
            self.facts,
            self.accounts,
            self.judged.contracts,
            at_ms=at_ms,
            measured_ms=self.time.at_ms,
            groups=self.groups,
        )


def measure(
    layout: Layout,
    topology: Topology,
    specs: Sequence[SlaSpec],
    time: CheckTime,
    judged: JudgedTables,
    *,
    with_accounts: bool = True,
    paths: Mapping[str, pl.DataFrame] = MappingProxyType({}),
) -> Measured:
    """Measures everything by which *specs* are judged.

    Args:
        layout: paths of the warehouse.
        topology: the topology that promises the SLAs.
        specs: the SLAs to judge.
        time: the time of the check.
        judged: the verdicts on the contracts of tables.
        with_accounts: whether to read the accounts of records, which only completeness and the suites need.
        paths: rows of tables, by name, in place of the older ones that a report has stored.
    """
    at_ms = time.at_ms
    # Queries read many tables: a single unreadable one would make all of them fail.
    tables = answers_over(layout.warehouse, topology.name, only=judged.readable, given=paths)
    nothing = Measured(
        layout=layout,
        topology=topology,
        specs=specs,
        time=time,
        tables=tables,
        judged=judged,
        facts=[],
        accounts=[],
        groups={},
    )
    if topology.is_watch:
        return replace(nothing, watched=read_watched(topology, specs, at_ms=at_ms))
    return replace(
        nothing,
        facts=_facts(layout, topology, specs, tables, judged.readable, at_ms=at_ms),
        accounts=_accounts(layout, topology, specs, tables, time) if with_accounts else [],
        groups=groups_seen(tables, topology, specs, at_ms=at_ms),
    )


def _accounts(
    layout: Layout, topology: Topology, specs: Sequence[SlaSpec], tables: Tables, time: CheckTime
) -> list[Row]:
    """Returns the accounts of records since the check before, or since the oldest account that is not closed."""
    # An account stays open until it closes, so batches are read from the oldest open one on.
    open_ms = open_account_before(layout, topology.name, time.at_ms, time.run_id)
    since_ms = since_the_check_before(time).start_ms - _longest_ms(specs)
    since_ms = min(since_ms, time.at_ms if open_ms is None else open_ms)
    return sla_facts.accounts(tables, topology, at_ms=time.at_ms, since_ms=since_ms)


def judge(measured: Measured, behind: Collection[str]) -> list[Status]:
    """Returns the status of each SLA, and since when one is broken.

    Nothing is known of the sub-topologies that are *behind*: their facts do not reach the instant of the check.
    """
    topology, at_ms = measured.topology, measured.time.at_ms
    found = measured.status_at(at_ms)

    def judged_at(some: Sequence[SlaSpec], instant_ms: int) -> list[Status]:
        if topology.is_watch:
            return watched_statuses(some, measured.watched, at_ms=instant_ms, until_ms=instant_ms)
        then = _facts(measured.layout, topology, some, measured.tables, measured.judged.readable, at_ms=instant_ms)
        return statuses(some, topology, then, accounts=(), at_ms=instant_ms)

    # Most checks break nothing new, and need neither.
    before = partial(found_before, measured.layout, topology.name, at_ms, measured.time.run_id)
    known = [unknown_if_behind(status, topology, behind) for status in found]
    return with_crossings(known, before, judged_at, at_ms=at_ms)


def explain(measured: Measured, judged: Sequence[Status], explain_promise: Explain) -> list[SlaResult]:
    """Returns a result for each status, with the causes of those that are broken by *explain_promise*.

    Of a watched table its own log says what is known.
    """
    results = []
    for status in judged:
        is_explained = status.verdict in BROKEN and not measured.topology.is_watch
        known = Explained(culprit=status.culprit, blocked_by=status.blocked_by)
        why = explain_promise(status) if is_explained else known
        told = replace(status, culprit=why.culprit, blocked_by=why.blocked_by)
        result = result_of(
            told,
            why.causes,
            topology=measured.topology.name,
            checked_ms=measured.time.at_ms,
            run_id=measured.time.run_id,
            excluded_because=excluded_because(status.spec, measured.time.at_ms, is_past=measured.time.is_past),
        )
        results.append(result)
    return results


def record(measured: Measured, results: Sequence[SlaResult]) -> None:
    """Replaces the *results* of the run in `sla_results`."""
    path = measured.layout.report_table(measured.topology.name, SLA_RESULTS.name)
    replace_rows(rows_of(results), SLA_RESULTS, path, where=is_text("run_id", measured.time.run_id))


def notify(measured: Measured, *, made_ms: int | None, unusable: Collection[str], project: Path | None) -> None:
    """Writes the changes of incidents and alerts that follow from the recorded results, and the page.

    Channels deliver the changes afterwards. A check that dies before this is repeated, and writes both.

    Args:
        measured: what was measured.
        made_ms: the clock when the check is made, epoch ms; None if that is its instant.
        unusable: names of SLAs that are promised and cannot be judged. Their incidents do not change.
        project: the folder of the topologies that may read its topics; None if no other topology does.
    """
    if not measured.time.is_past:
        follow_up(
            measured.layout,
            measured.topology,
            measured.specs,
            at_ms=measured.time.at_ms,
            run_id=measured.time.run_id,
            made_ms=made_ms,
            unusable=unusable,
            project=project,
        )
    write_sla_page(measured.layout, measured.topology.name)


def _facts(
    layout: Layout,
    topology: Topology,
    specs: Sequence[SlaSpec],
    tables: Tables,
    readable: Container[Path],
    *,
    at_ms: int,
) -> list[Fact]:
    """Returns all facts by which *specs* are judged at *at_ms*."""
    later = sla_facts.later(tables, topology.name, at_ms=at_ms)
    drivers = _drivers(layout, topology, tables, readable, at_ms=at_ms)
    facts = sla_facts.facts(tables, topology, specs, drivers, at_ms=at_ms)
    # Tables whose record times SLAs of staleness ask for.
    timed_tables = set()
    for name, path in _staleness_tables(layout, topology.name, specs):
        if path in readable:
            timed_tables.add(name)
            facts.append(_newest_fact(name, path, later))
    facts += sla_facts.newest_of_sinks(tables, topology, timed_tables, at_ms=at_ms)
    facts += objective_facts(tables, topology, specs, _counted(layout, topology, specs, readable), at_ms=at_ms)
    facts += observed_latencies(tables, topology, specs, at_ms=at_ms)
    facts += merged_facts(layout, topology, specs, readable, at_ms=at_ms)
    return facts


def _drivers(
    layout: Layout, topology: Topology, tables: Tables, readable: Container[Path], *, at_ms: int
) -> dict[str, HeartbeatFacts]:
    """Returns the facts about the drivers at *at_ms*, of the streams whose tables about them are *readable*."""

    def may_be_read(name: str) -> bool:
        paths = (layout.stream_table(topology.name, name, table.name) for table in (BATCHES, HEARTBEATS))
        return all(path in readable or is_missing(path) for path in paths)

    drivers = drivers_of(layout, topology, at_ms=at_ms, stored=tables.stored)
    return {name: driver for name, driver in drivers.items() if may_be_read(name)}


def _counted(layout: Layout, topology: Topology, specs: Sequence[SlaSpec], readable: Container[Path]) -> dict[str, int]:
    """Returns the newest batch that rollups have counted, by sub-topology.

    Only objectives among *specs* need it. An unreadable table has none.
    """
    is_needed = any(spec.compliance for spec in specs)
    if not is_needed or layout.report_table(topology.name, LATENCY_ROLLUP.name) not in readable:
        return {}
    return counted_batches(layout, topology.name, names_in(topology.sub_topologies))


def _newest_fact(table: str, path: Path, later: Mapping[str, int]) -> Fact:
    """Returns the fact about the newest record time in *table*.

    The table is at *path*. *later* has, by sub-topology, the first batch that was finished after the check's instant.
    """
    return sla_facts.newest_fact(table, newest_ms(path, before_batch=later.get(path.parent.name)))


def stored_expectations(layout: Layout, topology: Topology) -> list[dict[str, Any]]:
    """Returns the rows of `expectation_results`, with instants as epoch ms."""
    return in_ms(report_rows(layout, topology.name, EXPECTATION_RESULTS))


def since_the_check_before(time: CheckTime) -> Interval:
    """Returns the interval from the check before until *time*, which is at least CONTRACTS_OVER_MS long."""
    earliest_ms = time.at_ms - CONTRACTS_OVER_MS
    if time.before_ms is None:
        return Interval(earliest_ms, time.at_ms)
    # The interval begins earlier by the difference that clocks may have, so that no row is left out.
    return Interval(min(earliest_ms, time.before_ms - CLOCKS_APART_MS), time.at_ms)


def _longest_ms(specs: Sequence[SlaSpec]) -> int:
    """Returns the longest limit of completeness in *specs*, in ms."""
    # An account that is open for so long has reached every limit.
    longest_ms: float = 0
    for spec in specs:
        if spec.measure is COMPLETENESS and isinstance(spec.limits, Sla):
            longest_ms = max(longest_ms, spec.limits.warn_after_ms or 0, spec.limits.error_after_ms or 0)
    return round(longest_ms)


def _staleness_tables(layout: Layout, topology: str, specs: Sequence[SlaSpec]) -> Iterator[tuple[str, Path]]:
    """Yields names and paths of the tables whose staleness *specs* limit."""
    for name in sorted({spec.subject for spec in specs if spec.measure is STALENESS and not spec.by}):
        yield from ((name, path) for path in stream_tables(layout, topology, name))
