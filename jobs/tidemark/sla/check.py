"""Checks the SLAs of a topology for an instant: measure, judge, explain, record, notify."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import pandas as pd

from tidemark.collecting import names_in
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
from tidemark.facts.report_rows import report_rows, rows_in
from tidemark.model.kinds.registry import KINDS
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import Interval, is_text
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.sla_event_rows import row_of, rows_of
from tidemark.model.sla_events import SlaResult
from tidemark.model.sla_spec import CLOCKS_APART_MS, CONTRACTS_OVER_MS, Measure, SlaSpec
from tidemark.model.tables.catalog import BATCHES, EXPECTATION_RESULTS, HEARTBEATS, LATENCY_ROLLUP, SLA_RESULTS
from tidemark.model.topology import Topology
from tidemark.semantics.incidents import BROKEN
from tidemark.semantics.sla import Sla
from tidemark.sla.contracts.contract_sql import COUNTS
from tidemark.sla.contracts.counts import SCHEMA_COUNTS, ContractCounts, judge_contracts
from tidemark.sla.contracts.periods import CONTRACT, SCHEMA, judged_before, kept_at, periods_after, standing_results
from tidemark.sla.contracts.quality import Quality
from tidemark.sla.incidents.changes import excluded_because
from tidemark.sla.incidents.explaining import Explain, Explained, explainer
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
from tidemark.storage.delta.report_tables import open_report, replace_in, replace_rows
from tidemark.storage.delta.tables import again_after_others
from tidemark.storage.location import is_missing
from tidemark.storage.warehouse import stream_tables


def run(
    layout: Layout,
    topology: Topology,
    specs: Sequence[SlaSpec],
    *,
    at_ms: int,
    run_id: str,
    made_ms: int | None = None,
    unusable: Collection[str] = (),
    behind: Collection[str] = (),
    project: Path | None = None,
) -> None:
    """Checks *specs* and replaces the results of *run_id*.

    The changes of incidents are written after the results, and before the page.

    Args:
        layout: of the warehouse.
        topology: that promises the SLAs.
        specs: the SLAs to judge.
        at_ms: the instant of the check, epoch ms.
        run_id: of the check. A check that is repeated under it replaces its results.
        made_ms: the clock when the check is made, epoch ms; None: *at_ms*.
        unusable: names of SLAs that are promised and cannot be judged. Their incidents do not change.
        behind: sub-topologies whose facts do not reach the instant. Nothing is known of them.
        project: the folder of the topologies that may read its topics; None: none does.
    """
    measured = measure(layout, topology, specs, at_ms=at_ms, run_id=run_id)
    judged = judge(measured, behind)
    explain_promise = explainer(topology, layout, measured.tables.stored, at_ms=at_ms)
    results = explain(measured, judged, explain_promise)
    record(measured, judged, results)
    notify(measured, made_ms=made_ms, unusable=unusable, project=project)


@dataclass(frozen=True, kw_only=True)
class Measured:
    """What a check has measured.

    Attributes:
        layout: of the warehouse.
        topology: that promises the SLAs.
        specs: the SLAs to judge.
        at_ms: the instant of the check, epoch ms.
        run_id: of the check.
        is_past: another run checked a later instant, so that this check changes no incident.
        tables: that can be read.
        readable: their places.
        facts: of all kinds that the SLAs need.
        accounts: rows of `sla_facts.accounts`.
        groups: of SLAs with `by`, by name of the SLA.
        contracts: rows of `expectation_results` about the contracts of tables.
        quality: judges what was found.
    """

    layout: Layout
    topology: Topology
    specs: Sequence[SlaSpec]
    at_ms: int
    run_id: str
    is_past: bool
    tables: Tables
    readable: Collection[Path]
    facts: Sequence[Fact]
    accounts: Sequence[Row]
    groups: Mapping[str, GroupsSeen]
    contracts: Sequence[Row]
    quality: Quality


def measure(layout: Layout, topology: Topology, specs: Sequence[SlaSpec], *, at_ms: int, run_id: str) -> Measured:
    """Returns all facts by which *specs* are judged at *at_ms*, and what holds of the contracts of tables."""
    quality = Quality()
    # A check for an instant before one that was checked changes no incident.
    is_past = is_checked_after(layout, topology.name, at_ms, run_id)
    before_ms = checked_before(layout, topology.name, at_ms, run_id)
    since = _since_the_check_before(at_ms, before_ms)
    stored = [] if is_past else _stored_expectations(layout, topology)
    is_first_of_day = before_ms is not None and before_ms // DAY_MS < at_ms // DAY_MS
    by_contract = judge_contracts(layout, topology, since, judged_before(stored), whole=is_first_of_day)
    readable = {each.path for each in by_contract if each.is_readable}
    # Queries read many tables: a single unreadable one would make all of them fail.
    tables = answers_over(layout.warehouse, topology.name, only=readable)
    # An account stays open until it closes, so batches are read from the oldest open one on.
    open_ms = open_account_before(layout, topology.name, at_ms, run_id)
    accounts_ms = min(since.start_ms - _longest_ms(specs), at_ms if open_ms is None else open_ms)
    return Measured(
        layout=layout,
        topology=topology,
        specs=specs,
        at_ms=at_ms,
        run_id=run_id,
        is_past=is_past,
        tables=tables,
        readable=readable,
        facts=_facts(layout, topology, specs, tables, readable, at_ms=at_ms),
        accounts=sla_facts.accounts(tables, topology, at_ms=at_ms, since_ms=accounts_ms),
        groups=groups_seen(tables, topology, specs, at_ms=at_ms),
        contracts=_contracts(quality, by_contract, stored, at_ms=at_ms),
        quality=quality,
    )


def judge(measured: Measured, behind: Collection[str]) -> list[Status]:
    """Returns the status of each SLA, and since when one is broken.

    Nothing is known of the sub-topologies that are *behind*: their facts do not reach the instant of the check.
    """
    topology, at_ms = measured.topology, measured.at_ms
    found = statuses(
        measured.specs,
        topology,
        measured.facts,
        measured.accounts,
        measured.contracts,
        at_ms=at_ms,
        groups=measured.groups,
    )

    def judged_at(some: Sequence[SlaSpec], instant_ms: int) -> list[Status]:
        then = _facts(measured.layout, topology, some, measured.tables, measured.readable, at_ms=instant_ms)
        return statuses(some, topology, then, accounts=(), at_ms=instant_ms)

    # Most checks break nothing new, and need neither.
    before = partial(found_before, measured.layout, topology.name, at_ms, measured.run_id)
    known = [unknown_if_behind(status, topology, behind) for status in found]
    return with_crossings(known, before, judged_at, at_ms=at_ms)


def explain(measured: Measured, judged: Sequence[Status], explain_promise: Explain) -> list[SlaResult]:
    """Returns a result for each status, with the causes of those that are broken by *explain_promise*."""
    results = []
    for status in judged:
        is_broken = status.verdict in BROKEN
        why = explain_promise(status) if is_broken else Explained(culprit=status.culprit)
        told = replace(status, culprit=why.culprit, blocked_by=why.blocked_by)
        result = result_of(
            told,
            why.causes,
            topology=measured.topology.name,
            checked_ms=measured.at_ms,
            run_id=measured.run_id,
            excluded_because=excluded_because(status.spec, measured.at_ms, is_past=measured.is_past),
        )
        results.append(result)
    return results


def record(measured: Measured, judged: Sequence[Status], results: Sequence[SlaResult]) -> None:
    """Replaces the *results* of the run, and extends the periods of expectations.

    Args:
        measured: what was measured.
        judged: the status of each SLA.
        results: the result of each, in the same order.
    """
    layout, topology = measured.layout, measured.topology
    path = layout.report_table(topology.name, SLA_RESULTS.name)
    replace_rows(rows_of(results), SLA_RESULTS, path, where=is_text("run_id", measured.run_id))
    if measured.is_past:
        return
    told = [
        {**row_of(result), "excused": status.is_excused, "measured": status.is_measured}
        for status, result in zip(judged, results, strict=True)
    ]
    accounts = pd.DataFrame(measured.accounts, columns=list(sla_facts.ACCOUNT))
    expected = [
        # The suite fails if an SLA has no row: nothing to judge is not a success.
        *measured.quality.check("sla_status", pd.DataFrame(told), slas=len(measured.specs)),
        *measured.quality.check("outcomes", accounts, kinds=[*KINDS]),
        *measured.contracts,
    ]
    _write_expectations(layout, topology, expected, at_ms=measured.at_ms, run_id=measured.run_id)


def notify(measured: Measured, *, made_ms: int | None, unusable: Collection[str], project: Path | None) -> None:
    """Writes the changes of incidents and alerts that follow from the recorded results, and the page.

    Channels deliver the changes afterwards. A check that dies before this is repeated, and writes both.

    Args:
        measured: what was measured.
        made_ms: the clock when the check is made, epoch ms; None: its instant.
        unusable: names of SLAs that are promised and cannot be judged. Their incidents do not change.
        project: the folder of the topologies that may read its topics; None: none does.
    """
    if not measured.is_past:
        follow_up(
            measured.layout,
            measured.topology,
            measured.specs,
            at_ms=measured.at_ms,
            run_id=measured.run_id,
            made_ms=made_ms,
            unusable=unusable,
            project=project,
        )
    write_sla_page(measured.layout, measured.topology.name)


def _write_expectations(layout: Layout, topology: Topology, found: Sequence[Row], *, at_ms: int, run_id: str) -> None:
    """Writes what a check *found* of expectations: it extends their periods, or begins new ones."""

    def write() -> None:
        stored = open_report(EXPECTATION_RESULTS, layout.report_table(topology.name, EXPECTATION_RESULTS.name))
        before = in_ms(rows_in(stored))
        after = periods_after(before, found, topology=topology.name, at_ms=at_ms, run_id=run_id)
        # All rows are in one file, which a replacement of some of them would write anew, too.
        replace_in(stored, kept_at(after, topology.retention, at_ms), EXPECTATION_RESULTS, where="true")

    again_after_others(write)


def _stored_expectations(layout: Layout, topology: Topology) -> list[dict[str, Any]]:
    return in_ms(report_rows(layout, topology.name, EXPECTATION_RESULTS))


def _facts(
    layout: Layout,
    topology: Topology,
    specs: Sequence[SlaSpec],
    tables: Tables,
    readable: Collection[Path],
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
    facts += merged_facts(layout, topology, specs, readable, at_ms=at_ms)
    return facts


def _drivers(
    layout: Layout, topology: Topology, tables: Tables, readable: Collection[Path], *, at_ms: int
) -> dict[str, HeartbeatFacts]:
    """Returns the facts about the drivers at *at_ms*, of the streams whose tables about them are *readable*."""

    def may_be_read(name: str) -> bool:
        paths = (layout.stream_table(topology.name, name, table.name) for table in (BATCHES, HEARTBEATS))
        return all(path in readable or is_missing(path) for path in paths)

    drivers = drivers_of(layout, topology, at_ms=at_ms, stored=tables.stored)
    return {name: driver for name, driver in drivers.items() if may_be_read(name)}


def _counted(
    layout: Layout, topology: Topology, specs: Sequence[SlaSpec], readable: Collection[Path]
) -> dict[str, int]:
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


def _since_the_check_before(at_ms: int, before_ms: int | None) -> Interval:
    """Returns the interval since the check before *at_ms*, which was for *before_ms*.

    It is CONTRACTS_OVER_MS long at least.
    """
    # The interval begins earlier by the difference that clocks may have, so that no row is left out.
    return Interval(min(at_ms - CONTRACTS_OVER_MS, at_ms if before_ms is None else before_ms - CLOCKS_APART_MS), at_ms)


def _longest_ms(specs: Sequence[SlaSpec]) -> int:
    """Returns the longest limit of completeness in *specs*, in ms."""
    # An account that is open for so long has reached every limit.
    longest_ms: float = 0
    for spec in specs:
        if spec.measure is Measure.COMPLETENESS and isinstance(spec.limits, Sla):
            longest_ms = max(longest_ms, spec.limits.warn_after_ms or 0, spec.limits.error_after_ms or 0)
    return round(longest_ms)


def _contracts(
    quality: Quality, by_contract: Sequence[ContractCounts], stored: Sequence[Row], *, at_ms: int
) -> list[dict[str, Any]]:
    """Returns rows of expectation_results on the contract of each table, columns before rows.

    What checks found in the last CONTRACTS_OVER_MS stands, by *stored*, the rows of expectation_results.
    """
    found = [
        *_results(quality, SCHEMA, by_contract, [each.schema for each in by_contract], at_ms),
        *_results(quality, CONTRACT, by_contract, [each.counts for each in by_contract], at_ms),
    ]
    sound = {(each.sub_topology, each.table) for each in by_contract if each.is_sound}
    standing = standing_results(found, stored, sound, since_ms=at_ms - CONTRACTS_OVER_MS)
    # What stands takes the place that it would have if it was found now.
    columns = [*SCHEMA_COUNTS, *COUNTS]
    tables = [(each.sub_topology, each.table) for each in by_contract]
    return sorted(
        standing,
        key=lambda row: (columns.index(row["column"]), tables.index((row["sub_topology"], row["table"]))),
    )


def _results(
    quality: Quality,
    suite: str,
    by_contract: Sequence[ContractCounts],
    counts: Sequence[Mapping[str, int]],
    at_ms: int,
) -> Iterator[dict[str, Any]]:
    """Yields a row of expectation_results for each table and expectation of *suite* about its *counts*."""
    for place, row in quality.check_each(suite, pd.DataFrame(counts)):
        of = by_contract[place]
        broken = {} if row["success"] else {"culprit": of.culprit, "example": of.example}
        what = {"table": of.table, "sub_topology": of.sub_topology, "table_version": of.version, "judged_at": at_ms}
        yield {**row, **what, **broken, "batch_id": of.batch_id, "rows": of.rows}


def _staleness_tables(layout: Layout, topology: str, specs: Sequence[SlaSpec]) -> Iterator[tuple[str, Path]]:
    """Yields names and paths of the tables whose staleness *specs* limit."""
    for name in sorted({spec.subject for spec in specs if spec.measure is Measure.STALENESS and not spec.by}):
        yield from ((name, path) for path in stream_tables(layout, topology, name))
