"""Checks the SLAs of a topology for an instant, and judges what checks have stored by great-expectations.

A whole check (`run`) judges the contracts of tables, measures, and judges what it has found. The checker
(`sla.watch`) makes checks without great-expectations. `judge_stored` judges theirs afterwards.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tidemark.facts.answers import Row
from tidemark.facts.measures import sla_facts
from tidemark.facts.report_rows import rows_in
from tidemark.model.kinds.registry import KINDS
from tidemark.model.project.layout import Layout
from tidemark.model.settings.retention import DAY_MS
from tidemark.model.slas.sla_spec import SlaSpec
from tidemark.model.tables.catalog import EXPECTATION_RESULTS
from tidemark.model.topology import Topology
from tidemark.sla.check_steps import (
    CheckTime,
    JudgedTables,
    check_time,
    explain,
    judge,
    measure,
    notify,
    record,
    since_the_check_before,
    stored_expectations,
)
from tidemark.sla.contracts.counts import ContractCounts, judge_contracts
from tidemark.sla.contracts.periods import CONTRACT, SCHEMA, judged_before, kept_at, periods_after
from tidemark.sla.contracts.quality import Quality
from tidemark.sla.contracts.verdicts import standing_contracts, verdict_on
from tidemark.sla.incidents.explaining import explainer
from tidemark.sla.incidents.tables import in_ms
from tidemark.sla.unjudged import FoundRows, found_rows, judged, unjudged
from tidemark.storage.delta.report_tables import open_report, replace_in
from tidemark.storage.delta.tables import again_after_others


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
        layout: paths of the warehouse.
        topology: the topology that promises the SLAs.
        specs: the SLAs to judge.
        at_ms: the instant of the check, epoch ms.
        run_id: the run of the check. A check that is repeated under the same run replaces its results.
        made_ms: the clock when the check is made, epoch ms; None if that is *at_ms*.
        unusable: names of SLAs that are promised and cannot be judged. Their incidents do not change.
        behind: sub-topologies whose facts do not reach the instant. Nothing is known of them.
        project: the folder of the topologies that may read its topics; None if no other topology does.
    """
    time, quality = check_time(layout, topology.name, at_ms=at_ms, run_id=run_id), Quality()
    tables = _judged_tables(layout, topology, quality, time)
    measured = measure(layout, topology, specs, time, tables)
    found = judge(measured, behind)
    explain_promise = explainer(topology, layout, measured.tables.stored, at_ms=at_ms)
    results = explain(measured, found, explain_promise)
    record(measured, results)
    if not time.is_past:
        rows = found_rows(measured, found, results)
        _write_expectations(layout, topology, [*_suites(quality, topology, rows), *tables.contracts], time)
    notify(measured, made_ms=made_ms, unusable=unusable, project=project)


def judge_stored(layout: Layout, topology: Topology, *, at_ms: int, run_id: str) -> int:
    """Judges what checks have stored, and the contracts of tables; returns the number of checks.

    Each check is judged under its own instant and run, the oldest first, and tables for *at_ms* (epoch ms) under
    *run_id*. A run that dies is repeated, and changes nothing where it has judged before.
    """
    quality, checks = Quality(), 0
    for path, rows in unjudged(layout, topology.name):
        check = CheckTime(at_ms=rows.at_ms, run_id=rows.run_id, is_past=False, before_ms=None)
        _write_expectations(layout, topology, _suites(quality, topology, rows), check)
        judged(path)
        checks += 1
    time = check_time(layout, topology.name, at_ms=at_ms, run_id=run_id)
    _write_expectations(layout, topology, _judged_tables(layout, topology, quality, time).contracts, time)
    return checks


def _suites(quality: Quality, topology: Topology, rows: FoundRows) -> list[dict[str, Any]]:
    """Returns rows of expectation_results about what a check has found."""
    # The suite fails if an SLA has no row: nothing to judge is not a success.
    of_slas = quality.check("sla_status", pd.DataFrame(rows.slas), slas=rows.promised)
    if topology.is_watch:  # without streams there are no outcomes
        return [*of_slas]
    accounts = pd.DataFrame(rows.accounts, columns=list(sla_facts.ACCOUNT))
    return [*of_slas, *quality.check("outcomes", accounts, kinds=[*KINDS])]


def _judged_tables(layout: Layout, topology: Topology, quality: Quality, time: CheckTime) -> JudgedTables:
    """Judges the contracts of all tables, by the rows that came since they were judged before."""
    stored = [] if time.is_past else stored_expectations(layout, topology)
    is_first_of_day = time.before_ms is not None and time.before_ms // DAY_MS < time.at_ms // DAY_MS
    since = since_the_check_before(time)
    by_contract = judge_contracts(layout, topology, since, judged_before(stored), whole=is_first_of_day)
    found = [*verdicts_of_suites(quality, by_contract, time.at_ms)]
    return JudgedTables(
        contracts=standing_contracts(found, by_contract, stored, at_ms=time.at_ms),
        readable={each.path for each in by_contract if each.is_readable},
    )


def _write_expectations(layout: Layout, topology: Topology, found: Sequence[Row], time: CheckTime) -> None:
    """Writes what a check *found* of expectations: it extends their periods, or begins new ones."""

    def write() -> None:
        stored = open_report(EXPECTATION_RESULTS, layout.report_table(topology.name, EXPECTATION_RESULTS.name))
        before = in_ms(rows_in(stored))
        after = periods_after(before, found, topology=topology.name, at_ms=time.at_ms, run_id=time.run_id)
        # All rows are in one file, which a replacement of some of them would write anew, too.
        replace_in(stored, kept_at(after, topology.retention, time.at_ms), EXPECTATION_RESULTS, where="true")

    again_after_others(write)


def verdicts_of_suites(quality: Quality, by_contract: Sequence[ContractCounts], at_ms: int) -> Iterator[dict[str, Any]]:
    """Yields a row of expectation_results for each table and expectation of the suites about its counts."""
    counts = {SCHEMA: [each.schema for each in by_contract], CONTRACT: [each.counts for each in by_contract]}
    for suite, of_tables in counts.items():
        for position, found in quality.check_each(suite, pd.DataFrame(of_tables)):
            yield verdict_on(by_contract[position], found, at_ms=at_ms)
