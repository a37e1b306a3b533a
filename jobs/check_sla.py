"""Checks the SLAs of a topology at an instant, and whether its accounting closes.

Writes sla_results, a row per SLA, dq_results, a row per expectation, and incidents, a row for each that opens, gets
worse or ends; and html/slas.html, a page of the newest. What does not hold is a row and never a failure of this job.
An SLA that cannot be used is one, after all that follows from the others was written; its incident stays open.
Checking again with the same --run-id replaces its rows. For a past instant it leaves out what batches wrote that were
finished later. No incident follows from a check for an instant before one that was checked already.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from tidemark.cli.sql import Warehouse
from tidemark.clock import wall_clock_ms
from tidemark.report.batch_job import add_instant, parser, writing
from tidemark.report.report_tables import replace_rows
from tidemark.sla import facts as sla_facts
from tidemark.sla.contracts import Judged, judged
from tidemark.sla.culprits import READS, with_culprits
from tidemark.sla.incident_facts import quiet
from tidemark.sla.incident_tables import checked_before, follow_up, is_checked_after
from tidemark.sla.newest_times import newest_ms
from tidemark.sla.page import write_sla_page
from tidemark.sla.quality import Quality
from tidemark.sla.status import statuses
from tidemark.sla.words import sla_row
from tidemark.spark import stream_tables
from tidemark.spec.intervals import Interval, is_text, iso
from tidemark.spec.layout import Layout
from tidemark.spec.project import Project
from tidemark.spec.sla_spec import CONTRACTS_OVER_MS, Measure, SlaSpec, load_usable
from tidemark.spec.tables import (
    BATCHES,
    CLOCK_SKEW,
    DQ_RESULTS,
    HEARTBEATS,
    LATENCY_BUCKETS,
    OUTCOMES,
    SLA_RESULTS,
    WATERMARKS,
)
from tidemark.spec.topology import Topology

CLOCKS_APART_MS = 60_000
"""An instant may be so far ahead: the scheduler that says what is now has a clock of its own."""
READ_HERE = {table.name for table in (BATCHES, CLOCK_SKEW, HEARTBEATS, LATENCY_BUCKETS, OUTCOMES, WATERMARKS)}


def main() -> None:
    """Run as the command line says."""
    arguments = parser(__doc__)
    add_instant(arguments, "--at", "at_ms", "instant to judge for")
    arguments.add_argument("--run-id", required=True, help="the run that asks")
    given = arguments.parse_args()
    if given.at_ms > (now_ms := wall_clock_ms()) + CLOCKS_APART_MS:
        arguments.error(f"argument --at: it is {iso(now_ms)} now, got {iso(given.at_ms)}; nobody knows of it yet")
    slas = load_usable(Project.here().slas, given.topology)
    if not slas.specs:
        slas.refuse()
    with writing(given.warehouse, given.topology.name):
        run(
            given.warehouse,
            given.topology,
            slas.specs,
            at_ms=given.at_ms,
            run_id=given.run_id,
            unusable=slas.errors,
        )
    slas.refuse()


def run(
    layout: Layout,
    topology: Topology,
    specs: Sequence[SlaSpec],
    *,
    at_ms: int,
    run_id: str,
    unusable: Collection[str] = (),
) -> None:
    """Replace the results of *run_id* by those of a check of *specs* for the instant *at_ms*.

    The changes of incidents that follow come last; of SLAs that are *unusable*, by name, none does.
    """
    quality = Quality()
    by_contract = judged(layout, topology, _since_the_check_before(layout, topology.name, at_ms=at_ms, run_id=run_id))
    contracts = list(_contracts(quality, by_contract))
    readable = {each.path for each in by_contract if each.is_readable}
    tables = Warehouse(layout.warehouse, READS | READ_HERE, only=readable)
    later = sla_facts.later(tables, topology.name, at_ms=at_ms)
    newest = [(table, path) for table, path in _of_staleness(layout, topology.name, specs) if path in readable]
    facts = [
        *sla_facts.facts(tables, topology.name, specs, at_ms=at_ms),
        *sla_facts.reached(tables, topology, {table for table, _ in newest}, at_ms=at_ms),
        *(sla_facts.told(table, newest_ms(path, before_batch=later.get(path.parent.name))) for table, path in newest),
    ]
    accounts = sla_facts.accounts(tables, topology.name, at_ms=at_ms)
    measured = statuses(specs, topology, facts, accounts, contracts, at_ms=at_ms)
    found = list(with_culprits(measured, topology, layout, tables, at_ms=at_ms))
    frame = pd.DataFrame([{**sla_row(s), "idle": s.idle, "measured": s.is_measured} for s in found])
    expected = [
        *quality.check("sla_status", frame, slas=len(specs)),
        *quality.check("outcomes", pd.DataFrame(accounts, columns=list(sla_facts.ACCOUNT))),
        *contracts,
    ]
    is_past = is_checked_after(layout, topology.name, at_ms, run_id)
    of_check = {"topology": topology.name, "checked_at": at_ms, "run_id": run_id}
    results = [{**sla_row(status), "quiet": quiet(status.spec, at_ms, is_past=is_past)} for status in found]
    for table, rows in ((SLA_RESULTS, results), (DQ_RESULTS, expected)):
        path = layout.report_table(topology.name, table.name)
        replace_rows([{**row, **of_check} for row in rows], table, path, where=is_text("run_id", run_id))
    if not is_past:
        follow_up(layout, topology, specs, at_ms=at_ms, run_id=run_id, unusable=unusable)
    write_sla_page(layout, topology.name)


def _since_the_check_before(layout: Layout, topology: str, *, at_ms: int, run_id: str) -> Interval:
    """Whose rows contracts are about: so that none is left out, those of some time at least."""
    before_ms = checked_before(layout, topology, at_ms, run_id)
    return Interval(min(at_ms - CONTRACTS_OVER_MS, at_ms if before_ms is None else before_ms - CLOCKS_APART_MS), at_ms)


def _contracts(quality: Quality, found: Sequence[Judged]) -> Iterator[dict[str, Any]]:
    """Rows of dq_results on what was *found* of each table."""
    for suite, counts in (("schema", [each.schema for each in found]), ("contract", [each.counts for each in found])):
        for place, row in quality.check_each(suite, pd.DataFrame(counts)):
            of = found[place]
            broken = {} if row["success"] else {"culprit": of.culprit, "example": of.example}
            what = {"table": of.table, "sub_topology": of.sub_topology, "table_version": of.version}
            yield {**row, **what, **broken, "batch_id": of.batch_id, "rows": of.rows}


def _of_staleness(layout: Layout, topology: str, specs: Sequence[SlaSpec]) -> Iterator[tuple[str, Path]]:
    """The tables of whose age *specs* promise something."""
    for name in sorted({spec.subject for spec in specs if spec.measure is Measure.STALENESS}):
        yield from ((name, path) for path in stream_tables(layout, topology, name))


if __name__ == "__main__":
    main()
