"""Checks the SLAs of a topology at an instant, and whether its accounting closes.

Writes sla_results, a row per SLA, and dq_results, a row per expectation. What does not hold is a row and never a
failure of this job. Checking again with the same --run-id replaces its rows. For a past instant it leaves out what
batches wrote that were finished later; rows that these replaced, of sinks with current rows, are not there any more.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import pandas as pd
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from tidemark.cli.sql import Warehouse
from tidemark.report import sla_facts
from tidemark.report.batch_job import add_instant, parser, writing
from tidemark.report.quality import Quality
from tidemark.report.report_tables import replace_rows
from tidemark.report.sla_status import Status, statuses
from tidemark.spark import PROJECT, read_table, read_times, session
from tidemark.spec.intervals import Interval, is_text
from tidemark.spec.layout import Layout
from tidemark.spec.sla_spec import Measure, SlaSpec, load
from tidemark.spec.tables import (
    BATCHES,
    CRITICAL_PATH_STEPS,
    DQ_RESULTS,
    LATENCY_BUCKETS,
    OUTCOMES,
    SLA_RESULTS,
    WATERMARKS,
)
from tidemark.spec.topology import Topology

EXPECTATIONS = PROJECT / "expectations"
LATER = """
    SELECT sub_topology, min(batch_id) FROM batches
    WHERE topology = $1 AND finished_at > make_timestamptz($2 * 1000) GROUP BY ALL
"""


def main() -> None:
    """Run as the command line says."""
    arguments = parser(__doc__)
    add_instant(arguments, "--at", "at_ms", "instant to judge for")
    arguments.add_argument("--run-id", required=True, help="the run that asks")
    given = arguments.parse_args()
    specs = load(EXPECTATIONS / "slas.toml", given.topology)
    with session("tidemark-check-sla") as spark, writing(given.warehouse, given.topology.name):
        run(spark, given.warehouse, given.topology, specs, at_ms=given.at_ms, run_id=given.run_id)


def run(
    spark: SparkSession, layout: Layout, topology: Topology, specs: Sequence[SlaSpec], *, at_ms: int, run_id: str
) -> None:
    """Replace the results of *run_id* by those of a check of *specs* for the instant *at_ms*."""
    later = dict(Warehouse(layout.warehouse, {BATCHES.name}).ask(LATER, [topology.name, at_ms]).rows)
    facts = _facts(spark, layout, topology.name, specs, later, at_ms=at_ms).toArrow().to_pylist()
    tables = (_before(later, read_table(spark, layout, topology.name, table)) for table in (OUTCOMES, BATCHES))
    accounts = sla_facts.accounts(*tables).toArrow()
    found = statuses(specs, topology, facts, accounts.to_pylist(), at_ms=at_ms)
    quality = Quality(EXPECTATIONS)
    frame = pd.DataFrame([{**_row(status), "idle": status.idle} for status in found])
    judged = [
        *quality.check("sla_status", frame, slas=len(specs)),
        *quality.check("outcomes", accounts.to_pandas()),
    ]
    of_check = {"topology": topology.name, "checked_at": at_ms, "run_id": run_id}
    for table, rows in ((SLA_RESULTS, [_row(status) for status in found]), (DQ_RESULTS, judged)):
        path = layout.report_table(topology.name, table.name)
        replace_rows([{**row, **of_check} for row in rows], table, path, where=is_text("run_id", run_id))


def _before(later: Mapping[str, int], rows: DataFrame) -> DataFrame:
    """The *rows* of batches before the one that *later* has for their sub-topology, if it has one."""
    for sub_topology, batch_id in later.items():
        rows = rows.where((F.col("sub_topology") != sub_topology) | (F.col("batch_id") < batch_id))
    return rows


def _facts(
    spark: SparkSession,
    layout: Layout,
    topology: str,
    specs: Sequence[SlaSpec],
    later: Mapping[str, int],
    *,
    at_ms: int,
) -> DataFrame:
    """All that *specs* are judged by, but the accounts."""
    buckets, steps, marks = (
        read_table(spark, layout, topology, table) for table in (LATENCY_BUCKETS, CRITICAL_PATH_STEPS, WATERMARKS)
    )
    frames = sla_facts.watermarks(_before(later, marks))
    for table in sorted({spec.subject for spec in specs if spec.measure is Measure.STALENESS}):
        rows = read_times(spark, layout, topology, table)
        frames += [sla_facts.newest(_before(later, rows), table)] if rows else []
    for over_ms in sorted({spec.over_ms for spec in specs}):
        over = Interval(at_ms - over_ms, at_ms)
        frames += [
            sla_facts.latencies(buckets, over),
            sla_facts.added_latencies(steps, over),
            sla_facts.critical_latencies(steps, over),
        ]
    return sla_facts.facts(frames)


def _row(status: Status) -> dict[str, Any]:
    """The columns of sla_results that are the SLA's own."""
    spec = status.spec
    return {
        "sla": spec.name,
        "subject": spec.subject,
        "measure": spec.measure.value,
        "verdict": status.verdict.value,
        "observed_ms": status.observed_ms,
        "warn_after_ms": spec.limits.warn_after_ms,
        "error_after_ms": spec.limits.error_after_ms,
        "culprit": status.culprit,
        "owner": spec.owner,
        "over_ms": spec.over_ms,
    }


if __name__ == "__main__":
    main()
