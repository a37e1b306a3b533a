"""Asks the scenes of `frozen_plays` all that users can ask, and compares the answers with stored ones.

The answers were stored before the tables of facts were put together, one table per grain. They must stay the same, cell
by cell, but for names. RENAMED, WORDS and MOVED are the one place for those, and CHANGED has the cells that may differ,
with the reason.

`PYTHONPATH=jobs:tests python -m support.frozen` stores the answers of this checkout.
"""

from __future__ import annotations

import hashlib
import html
import json
import platform
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, fields, is_dataclass
from datetime import date, datetime
from decimal import Decimal
from fnmatch import fnmatch
from functools import cached_property
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

import pytest
from prometheus_client import CollectorRegistry, generate_latest

from support.command_line import tidemark
from support.frozen_plays import CLOCK, SCENES, Scene
from tidemark.cli.audit import trace as trace_command
from tidemark.cli.explain import bound
from tidemark.cli.explain.topology import document
from tidemark.errors import TidemarkError
from tidemark.facts.history import history
from tidemark.facts.interval_facts import PageFacts, page_facts
from tidemark.facts.latency_places import ChartSpan
from tidemark.metrics.exporter import Exporter
from tidemark.model.project.files import CHECKOUT, VARIABLE
from tidemark.model.project.layout import CHANGES_OF
from tidemark.model.settings.intervals import iso
from tidemark.model.sla_spec import known_slas
from tidemark.model.tables.catalog import TABLES
from tidemark.query.sql import Warehouse
from tidemark.reports.pages.interval_page import page as interval_page
from tidemark.reports.pages.page_model import page_model, subjects_of
from tidemark.reports.pages.topology_page import history_page, operator_page, start_page, topology_page
from tidemark.reports.promises import promises
from tidemark.sla.page import sla_page
from tidemark.storage.warehouse import views
from tidemark.trace.counts import reconcile
from tidemark.trace.lineage import trace_row

FOLDER = Path(__file__).parents[1] / "delta" / "frozen"
COOKBOOK = (CHECKOUT / "docs" / "cookbook.md").read_text(encoding="utf-8")
QUESTIONS: dict[str, str] = dict(re.findall(r"## (\d+)\. .*?```sql\n(.*?)```", COOKBOOK, re.DOTALL))

# What may differ from the stored answers

RENAMED: Mapping[str, str] = {
    "said": "message",
    "held_by": "blocked_by",
    "quiet": "excluded_because",
    "table watermarks: max_timestamp": "newest_timestamp",
    "table completeness: complete_at": "decided_at",
    "table operator_state: newest": "newest_timestamp",
    "table heartbeats: at": "beat_at",
    "table heartbeats: since": "step_began_at",
    "table incidents: at": "changed_at",
    "table incidents: by": "decided_by",
    "table sla_alerts: at": "changed_at",
    "table sla_alerts: by": "decided_by",
    "table alert_decisions: by": "decided_by",
    "table alert_decisions: until": "ends_at",
    "table repair_decisions: by": "decided_by",
    "table deliveries: incident": "alert",
}
"""New names of columns, and of fields of lists and documents, by old ones.

A name applies everywhere, or after `QUESTION: ` to one answer: {"said": "message", "table watermarks: held_by":
"blocked_by"}.
"""
WORDS: Mapping[str, str] = {
    "kind reads latency_ms in_per_s": "kind reads average_ms in_per_s",
    "silenced_until said held_by": "silenced_until message blocked_by",
    "unknown or quiet": "unknown or excluded",
    "held up by": "blocked by",
    "broke an SLA": "broke the limit of an SLA",
    "windows broke it": "windows broke its limit",
    "check in 7 days: a proposal": "check with a measurement that counts in 7 days: a proposal",
    "checks in 7 days: a proposal": "checks with a measurement that counts in 7 days: a proposal",
    "hours in 7 days: a proposal": "hours with a measurement that counts in 7 days: a proposal",
    "ms, not checked": "ms, age not judged",
    "queued for a sibling": "queued in its batch",
    "for a sibling in the same batch": (
        "in the batch, while siblings, the journal or other streams of the process were served first"
    ),
    "waiting for the journal": "waiting for the journal or for Spark's task slots",
}
"""New words by old ones in texts of commands and pages, and in cells that are such a word alone, as names of tables."""
_COUNTS = (
    "records_in, held_before, emitted, suppressed, late, quarantined, duplicate, filtered, passed, superseded, "
    "held_after, fan_out, repeated, joined_beyond_history, released_early, reopened"
)
_ANY_COUNT = " OR ".join(f"{name} IS DISTINCT FROM 0" for name in _COUNTS.split(", "))
_TASKS = "(SELECT *, started_at AS began_at, finished_at AS ended_at, explode(tasks) AS task FROM operator_batches)"
_OF_BATCH = "topology, sub_topology, batch_id, operator, kind"
_READ = "{'source': source, 'partition': p.partition, 'from_offset': from_offset, 'until_offset': until_offset"
_IN_ORDER = "ORDER BY source, p.partition"
MOVED: Mapping[str, str] = {
    "batches": f"""
        SELECT b.*, sources, accepted_loss FROM batches b LEFT JOIN (
            SELECT topology, sub_topology, batch_id,
                   list({_READ}, 'latest_offset': latest_offset}} {_IN_ORDER})
                   FILTER (until_offset IS NOT NULL) AS sources,
                   list({{'source': source, 'partition': p.partition, 'from_offset': lost_from_offset,
                          'until_offset': lost_until_offset}} {_IN_ORDER})
                   FILTER (lost_from_offset IS NOT NULL) AS accepted_loss
            FROM partition_batches p GROUP BY ALL
        ) USING (topology, sub_topology, batch_id)
    """,
    "outcomes": f"SELECT {_OF_BATCH}, newest_ms, {_COUNTS} FROM operator_batches WHERE {_ANY_COUNT}",
    "operator_latency": f"""
        SELECT {_OF_BATCH}, level, thread_id, task.task_id, task.n, task.min_ms, task.max_ms, task.sum_ms,
               task.negative_n, began_at AS started_at, ended_at AS finished_at, queued_ms, recovered
        FROM {_TASKS} WHERE task.n IS NOT NULL
    """,
    "latency_bucket_rollup": """
        SELECT * EXCLUDE (n), b.bucket, b.n FROM (SELECT *, explode(buckets) AS b FROM latency_rollup)
    """,
    "emission_metrics": f"""
        SELECT {_OF_BATCH}, thread_id, task.task_id, task.idempotent_update_skip_total,
               task.idempotent_update_skip_rate, decided_at
        FROM {_TASKS} WHERE task.idempotent_update_skip_total IS NOT NULL
    """,
    "operator_tasks": f"""
        SELECT {_OF_BATCH}, task.shard, task.partition, task.host, task.started_at, task.finished_at, task.records,
               task.hot_key, task.hot_share, task.skew_ms, task.skew_error_ms
        FROM {_TASKS} WHERE task.host IS NOT NULL
    """,
    "disorder_buckets": """
        SELECT topology, sub_topology, batch_id, source, decided_at, counted.bucket, counted.n
        FROM (SELECT *, operator AS source, explode(disorder) AS counted FROM operator_batches)
    """,
    "watermarks": """
        WITH moved AS (
            FROM partition_batches
            WINDOW of_partition AS (
                PARTITION BY topology, sub_topology, source, partition_batches.partition ORDER BY batch_id
            )
            QUALIFY (watermark, newest_timestamp, activity, blocked_by)
                    IS DISTINCT FROM lag((watermark, newest_timestamp, activity, blocked_by))
                    OVER of_partition
                    OR from_offset < lag(until_offset) OVER of_partition
        ), batches_that_moved AS (SELECT DISTINCT topology, sub_topology, batch_id, decided_at FROM moved)
        SELECT * FROM moved WHERE source IS NOT NULL
        UNION ALL BY NAME
        SELECT m.*, p.* EXCLUDE (topology, sub_topology, batch_id, decided_at)
        FROM batches_that_moved m ASOF JOIN (FROM partition_batches WHERE source IS NULL) p
            ON m.topology = p.topology AND m.sub_topology = p.sub_topology AND m.batch_id >= p.batch_id
    """,
    "suppressed": "SELECT * REPLACE (to_json(asserted_ms)::VARCHAR AS asserted_ms) FROM suppressed",
    "operator_state": "FROM state_changes WHERE kind = 'state'",
    "held_records": """
        SELECT topology, sub_topology, batch_id, operator AS source, state_changes.partition AS partition,
               source_offset AS "offset", key, timestamp, state AS value, headers
        FROM state_changes WHERE kind = 'held_record'
    """,
    "clock_skew": """
        SELECT topology, sub_topology, clock.host, clock.estimated_at AS at, clock.offset_ms, clock.error_ms,
               clock.samples, clock.reference
        FROM (SELECT topology, sub_topology, explode(clock_offsets) AS clock FROM heartbeats)
    """,
    "critical_path_leaves": """
        SELECT topology, window_start, window_end, way.*
        FROM (SELECT * EXCLUDE (leaf, latency_ms, before_source_ms), explode(leaves) AS way FROM critical_paths)
    """,
    "sla_alerts": "FROM alerts",
    "alert_decisions": "FROM decisions WHERE outcome IS NULL",
    "repair_decisions": """
        SELECT *, decision AS command, CASE WHEN subject_kind = 'sub_topology' THEN subject END AS sub_topology
        FROM decisions WHERE outcome IS NOT NULL
    """,
    "dq_results": "FROM expectation_results",
}
"""Queries by the name of an old table that return its rows from new tables, under the new names of its columns.

A table that only has a new name: {"sla_alerts": "FROM alerts"}. Cells of tables whose columns are stored as digests are
not renamed by WORDS.
"""


@dataclass(frozen=True)
class Changed:
    """Cells that may differ, in answers and columns (of a document: paths) that match these patterns of `fnmatch`."""

    scene: str
    question: str
    column: str
    why: str


_EXACT = (
    "A record counts in the window of its time. Its window used to follow from the bucket of its latency, up to 1 % of "
    "the latency off, so that records of several windows were judged as those of one, and some windows not at all."
)
_OF_EXACT = "It follows from verdicts on windows, whose records are exact now: more windows have a verdict, and blame."
_BUCKETS = (
    "A row has the buckets of one window of records, so that there are more rows. The sums by operator and bucket are "
    "those of latency_bucket_rollup, which are the same."
)
_CONTRACTS = "There are fewer tables, and so fewer expectations about them; a row is one of a period, not of a check."
_WORKED = "The work of an input is its part of the age of a window, and null where it has none; it was always 0."
_NO_WORK = "A driver that worked 0 ms is occupied by no operator: there is no share of its work, and no hint about it."
_AVERAGE = "A moving average is cut to whole ms."
_UNTIL = "What is said of a partition ends with the last fact of its driver; it went on to the end of the interval."
_SENTENCE = "The sentence follows from the numbers beside it."
_SINGULAR = "The words of a number of one are singular."
_CROSSED = (
    "Since when a share, a number or a quantile is over its limit is known to the second; it was the check's instant."
)
_PARTS = "Beside a slow window stands the part of its age that took longest."
_WHOLE = "The sentence is whole, and says what is so of the level, the SLA or the table that it names."
_MEASURED = "What was measured stands with the instant of its check."
_AT_MOST_THE_SLOWEST = "A quantile of the records of a window lies between its fastest and its slowest record."
_WORDS_OF_PAGE = "The page says what its instants and numbers are."
_SHARES = "The columns share and usual share of blame are gone."
_RESULTS = "The first latency is that of results, as the demo prints it; rows of a repartition counted, too."
_LIVE = "Before the first report the command shows the path of the newest window, as the page does."
_OF_JOURNALS = "A report reads facts that only a journal has, as all readers do: the windows that they close are in it."
_NEIGHBOUR = "A quantile of the paths of an hour is one that was measured, as everywhere: of two neighbours the lower."
_BEATS = (
    "Estimates of clocks are part of the next heartbeat of their driver, and the plays write heartbeats of their own, "
    "without them."
)
_WITHIN = (
    "A percentile is not beyond the exact minimum and maximum beside it; it was the value that its bucket stands for."
)
_QUIET = "That all records gave results was not known: the newest ones did."
_NOT_THERE = "No batch found such a record at the broker, so that it is unknown, and not unread."
_WORDS_OF_REPORT = "The page says whose numbers it has, and what its words mean."
_WHAT_PARTS_ARE = "The page says why the part of an operator may be longer than its work on the window."
_THOUSANDS = "Lengths in the text of a path have a comma before each three digits, as the numbers around it."
_BY_BATCHES = "The newest batch and its unread records are those of the tables; a heartbeat may be older."
_ONE_REMEDY = "Findings with one remedy, one after the other, have it once."
_NO_UPSTREAM = "A source has no latency from an upstream on."
_ONE_WORD = (
    "The state of a stream is the word of one rule: a driver that was killed is dead everywhere, which was failed or "
    "silent, a driver that hangs is stuck, and batches without a heartbeat do not say that a stream never started."
)
_RANK = "A quantile is the nearest rank (decision 148): of few values it is the longest, or nearer to it than before."
_KNOWN = "A page says if the newest window is finished, and of how many late windows it is known what they waited for."
_ALL_SLAS = "SLAs with a warning are counted beside broken ones."
_INPUT = "The latency of an input is 0 by definition, and no average of measurements."
_PHASES = (
    "Batches have phases, in order, with their owners; those of a job have the wait for the trigger, and not their sum."
)
_EPOCHS = "A batch of a job's query has the driver that ran it; without a lease that is the first batch of the run."
CHANGED: Sequence[Changed] = (
    # Ranks of quantiles
    *(
        Changed(scene, f"page of the {page}", length, _RANK)
        for page, scenes in (
            ("report", ("flights", "kinds", "ticking", "job")),
            ("history", ("flights", "kinds", "ticking")),
        )
        for scene in scenes
        for length in (("[0-9]* s", "[0-9]* min*") if scene in {"flights", "kinds"} else ("[0-9]* [ms]*",))
    ),
    Changed("*", "facts of the report", "summary.p90_ms", _RANK),
    Changed("*", "facts of the report", "judged*.worst_ms", _RANK),
    Changed("*", "text of whatif", "as it was *", _RANK),
    Changed("*", "text of whatif", "then *", _RANK),
    Changed("*", "metrics", "tidemark_recent_latency_seconds*", _RANK),
    *(
        Changed("kinds", question, column, _RANK)
        for question, column in (
            ("table sla_results", "observed_ms"),
            ("table sla_results", "message"),
            ("view incident_history", "worst_observed"),
            ("view sla_history", "worst_observed_ms"),
            ("cookbook 20", "worst_observed_ms"),
            ("command status", "topologies*.path.verdicts*.value_ms"),
            ("command status", "topologies*.slas.rows*.message"),
            ("command status", "topologies*.slas.rows*.observed_ms"),
            ("command incidents", "[[]2].worst"),
            ("text of incidents", "totals_in_time-*"),
            ("metrics", "tidemark_sla_observed_seconds*latency_p99*"),
            ("page of the SLAs", "Latency p99 of totals is *"),
            ("page of the SLAs", "warn after 1 s, observed *"),
            ("page of the SLAs", "warn: 15* s"),
        )
    ),
    # Unfinished windows, and what is not known
    Changed("*", "facts of the report", "summary.in_parts", _KNOWN),
    Changed("*", "command status", "topologies*.path.is_finished", _KNOWN),
    Changed("kinds", "start page", "3 of 7 broken*", _ALL_SLAS),
    Changed("kinds", "page of the topology", "3 of 7 broken*", _ALL_SLAS),
    Changed("*", "page of the topology", "*: source, moving average *", _INPUT),
    # States of streams
    Changed("*", "command topology", "*.state", _ONE_WORD),
    Changed("*", "text of topology", "*: never_started", _ONE_WORD),
    Changed("*", "text of topology", "*: unknown", _ONE_WORD),
    Changed("*", "command status", "topologies*.state", _ONE_WORD),
    Changed("*", "metrics", "tidemark_stream_state*", _ONE_WORD),
    Changed("kinds", "start page", "failed", _ONE_WORD),
    Changed("kinds", "start page", "dead", _ONE_WORD),
    Changed("job", "start page", "never started", _ONE_WORD),
    Changed("job", "start page", "unknown", _ONE_WORD),
    Changed("kinds", "page of the topology", "*, moving average *, failed*", _ONE_WORD),
    Changed("kinds", "page of the topology", "*, moving average *, dead*", _ONE_WORD),
    Changed("kinds", "page of the topology", "failed", _ONE_WORD),
    Changed("kinds", "page of the topology", "dead", _ONE_WORD),
    Changed("kinds", "page of the topology", "streams failed", _ONE_WORD),
    Changed("kinds", "page of the topology", "streams dead", _ONE_WORD),
    Changed("job", "page of the topology", "*, moving average *, never started", _ONE_WORD),
    Changed("job", "page of the topology", "*, moving average *, unknown", _ONE_WORD),
    Changed("job", "page of the topology", "never started", _ONE_WORD),
    Changed("job", "page of the topology", "unknown", _ONE_WORD),
    Changed("kinds", "page of the SLAs", "streams failed", _ONE_WORD),
    Changed("kinds", "page of the SLAs", "streams dead", _ONE_WORD),
    # Texts of paths
    Changed("*", "table critical_paths", "path", _THOUSANDS),
    Changed("*", "table critical_paths", "moving_average_path", _THOUSANDS),
    Changed("*", "command path", "windows*path*", _THOUSANDS),
    Changed("*", "command status", "topologies*.path.*path*", _THOUSANDS),
    Changed("*", "facts of the report", "s*.path", _THOUSANDS),
    Changed("*", "page of the report", "* (0 ms) → * ms) = *,* ms", _THOUSANDS),
    Changed("*", "page of the report", "* (0 ms) → * ms) = ???? ms", _THOUSANDS),
    # Verdicts on the records of windows
    Changed("*", "table critical_paths", "verdicts", _AT_MOST_THE_SLOWEST),
    Changed("*", "command path", "windows*.verdicts*.value_ms", _AT_MOST_THE_SLOWEST),
    Changed("*", "facts of the report", "slowest*.verdicts*.value_ms", _AT_MOST_THE_SLOWEST),
    Changed("flights", "facts of the report", "spent*.over_sla", _AT_MOST_THE_SLOWEST),
    # What the newest batch left
    Changed("*", "command status", "topologies*.streams*.records_behind", _BY_BATCHES),
    Changed("*", "command topology", "sub_topologies*.last_batch_id", _BY_BATCHES),
    Changed("*", "text of topology", "*, last heartbeat *, batch *", _BY_BATCHES),
    *(
        Changed("*", "page of the operator *", line, _NO_UPSTREAM)
        for line in ("latency of its last ten windows", "on average, from its upstream on", "0 ms")
    ),
    *(
        Changed("kinds", "page of the topology", line, _ONE_REMEDY)
        for line in (
            *("(in another Airflow", ").", ", and start the driver of main:", "Look at its log:"),
            *("airflow dags unpause *", "tidemark logs shop/main", "tidemark up shop"),
        )
    ),
    # Batches of jobs
    Changed("*", "table batches", "phases", _PHASES),
    Changed("job", "table batches", "epoch", _EPOCHS),
    Changed("*", "table latency_buckets", "*", _BUCKETS),
    Changed("*", "table dq_results", "*", _CONTRACTS),
    # Windows of records
    Changed("flights", "table critical_paths", "over_sla", _EXACT),
    Changed("flights", "table critical_paths", "verdicts", _EXACT),
    Changed("flights", "table window_parts", "over_sla", _OF_EXACT),
    Changed("flights", "table window_parts", "broken_slas", _OF_EXACT),
    Changed("flights", "table window_parts", "usual_*", _OF_EXACT),
    Changed("flights", "table window_parts", "compared", _OF_EXACT),
    Changed("flights", "table window_parts", "*ed_ms", _OF_EXACT),
    Changed("flights", "table window_parts", "excess_ms", _OF_EXACT),
    Changed("flights", "table window_parts", "no_history", _OF_EXACT),
    Changed("flights", "view critical_path_blame", "*", _OF_EXACT),
    Changed("flights", "view paths_by_hour", "over_sla_windows", _OF_EXACT),
    Changed("flights", "command path", "windows*.verdicts*.value_ms", _EXACT),
    Changed("flights", "facts of the report", "blame*", _OF_EXACT),
    Changed("flights", "facts of the report", "judged*", _OF_EXACT),
    Changed("flights", "facts of the report", "summary.over_sla", _OF_EXACT),
    Changed("flights", "facts of the report", "slowest*.verdicts*", _EXACT),
    # Work of inputs, and moving averages
    Changed("*", "command path", "windows*.worked_ms", _WORKED),
    Changed("*", "command status", "topologies*.path.*.worked_ms", _WORKED),
    Changed("*", "facts of the report", "operators.*.worked_ms", _WORKED),
    Changed("*", "text of whatif", "*events: splitting does not help (source: *", _WORKED),
    Changed("job", "text of whatif", "*: splitting does not help (* of the work on 4 paths*", _WORKED),
    Changed("ticking", "text of whatif", "*: splitting does not help (* of the work on 5 paths*", _WORKED),
    Changed("*", "text of whatif", "*: splitting does not help (off the path: nan% of the work *", _NO_WORK),
    Changed("*", "command topology", "operators*.moving_average_ms", _AVERAGE),
    Changed("kinds", "text of topology", "* 666* 2014-05-13T12:01:09.499Z - 0", _AVERAGE),
    Changed("ticking", "text of topology", "by_group repartition priced 16*", _AVERAGE),
    Changed("ticking", "text of topology", "by_group_source source by_group 1,983*", _AVERAGE),
    Changed("ticking", "text of topology", "closed_board sink closed 7*", _AVERAGE),
    Changed("ticking", "text of topology", "priced_log sink priced 13*", _AVERAGE),
    # Ends of lags and of idle times
    Changed("*", "facts of the report", "lags*", _UNTIL),
    Changed("*", "facts of the report", "spans*.until_ms", _UNTIL),
    Changed("*", "facts of the report", "slowest*.longest_part.*", _PARTS),
    # Instants at which SLAs were crossed
    Changed("kinds", "table sla_results", "crossed_at", _CROSSED),
    Changed("kinds", "table incidents", "broken_since", _CROSSED),
    Changed("kinds", "table sla_alerts", "broken_since", _CROSSED),
    Changed("kinds", "view incident_history", "broken_since", _CROSSED),
    Changed("kinds", "command why", "[[]15].since", _CROSSED),
    Changed("kinds", "command why", "[[]1[34]].seen", _CROSSED),
    Changed("flights", "command why", "[[]1].seen", _CROSSED),
    Changed("kinds", "command status", "topologies[[]0].alerts[[]2].broken_since", _CROSSED),
    Changed("kinds", "command incidents", "[[]3].broken_since", _CROSSED),
    Changed("kinds", "text of incidents", "few_are_late-20140513T120250 *", _CROSSED),
    # Sentences
    Changed("kinds", "table sla_results", "message", _SINGULAR),
    Changed("kinds", "table sla_results", "blocked_by", _SINGULAR),
    Changed("kinds", "table incidents", "message", _SINGULAR),
    Changed("kinds", "table sla_alerts", "message", _SINGULAR),
    Changed("kinds", "table sla_alerts", "blocked_by", _SINGULAR),
    Changed("kinds", "view incident_history", "message", _SINGULAR),
    Changed("kinds", "command why", "[[]1].seen", _SINGULAR),
    Changed("unflushed", "command why", "[[]1].seen", _SINGULAR),
    Changed("kinds", "command status", "topologies[[]0].alerts[[]2].measurement", _SINGULAR),
    Changed("kinds", "command status", "topologies[[]0].alerts[[]3].blocked_by", _SINGULAR),
    Changed("kinds", "command status", "topologies[[]0].causes[[]1].seen", _SINGULAR),
    Changed("kinds", "command status", "topologies[[]0].slas.rows[[]0].blocked_by", _SINGULAR),
    Changed("kinds", "command status", "topologies[[]0].slas.rows[[]2].message", _SINGULAR),
    Changed("kinds", "command incidents", "[[]3].message", _SINGULAR),
    Changed("sharded", "reconcile", "differences", _SINGULAR),
    Changed("job", "command why", "[[]0].seen", _SENTENCE),
    Changed("job", "command status", "topologies[[]0].causes[[]0].seen", _SENTENCE),
    Changed("job", "command status", "topologies[[]0].path.mostly_before_source", _SENTENCE),
    Changed("*", "command status", "topologies[[]0].path.spent[[][01]].part", _SENTENCE),
    *(
        Changed("flights", f"table {table}", "blocked_by", _QUIET)
        for table in ("incidents", "sla_alerts", "sla_results")
    ),
    Changed("flights", "view incident_history", "blocked_by", _QUIET),
    Changed("flights", "text of incidents", "board_is_fresh-20260301T132010 *", _QUIET),
    Changed("flights", "command why", "[[]4].seen", _QUIET),
    Changed("kinds", "trace record events/0/900", '"outcome": *', _NOT_THERE),
    Changed("kinds", "trace record events/0/900", '"reason": *', _NOT_THERE),
    Changed("kinds", "trace record events/0/900", "main events source - *", _NOT_THERE),
    # Percentiles
    Changed("*", "table latency_rollup", "p*_ms", _WITHIN),
    Changed("*", "view latency_by_hour", "p*_ms", _WITHIN),
    Changed("*", "cookbook 12", "p*_ms", _WITHIN),
    Changed("*", "facts of the report", "latencies*.p*_ms", _WITHIN),
    Changed("*", "page of the report", ": median* highest p99 *", _WITHIN),
    Changed("flights", "page of the report", "9 min 5[25] s", _WITHIN),
    Changed("kinds", "page of the report", "25* s", _WITHIN),
    Changed("ticking", "page of the report", "25* s", _WITHIN),
    Changed("*", "page of the history", ": median* highest p99 *", _WITHIN),
    Changed("flights", "page of the history", "1 min 59 s", _WITHIN),
    Changed("flights", "page of the history", "2 min", _WITHIN),
    Changed("flights", "page of the history", "37* s", _WITHIN),
    Changed("flights", "page of the history", "5 s", _WITHIN),
    Changed("flights", "page of the history", "5.04 s", _WITHIN),
    Changed("flights", "page of the history", "9 min [23][27] s", _WITHIN),
    Changed("kinds", "page of the history", "25* s", _WITHIN),
    Changed("ticking", "page of the history", "25* s", _WITHIN),
    *(
        Changed("flights", question, "blocked_by", _WHOLE)
        for question in ("table incidents", "table sla_alerts", "table sla_results", "view incident_history")
    ),
    Changed("flights", "table sla_results", "message", _WHOLE),
    Changed("flights", "command why", "[[][0-3]].remedy", _WHOLE),
    Changed("flights", "command why", "[[][23]].seen", _WHOLE),
    Changed("flights", "text of incidents", "changes_are_fresh-20260301T132010 *", _WHOLE),
    Changed("kinds", "command why", "[[]1[2-5]].remedy", _WHOLE),
    Changed("kinds", "command why", "[[]1[25]].seen", _WHOLE),
    Changed("kinds", "command status", "topologies[[]0].slas.rows[[]4].message", _WHOLE),
    Changed("kinds", "command status", "topologies[[]0].alerts[[]?].measured_at", _MEASURED),
    # Clocks
    Changed("sharded", "table clock_skew", "*", _BEATS),
    # Results alone, and the path before the first report
    Changed("kinds", "command status", "topologies[[]0].streams[[]0].first_latency_ms", _RESULTS),
    *(
        Changed("unflushed", "command topology", name, _LIVE)
        for name in ("age_ms", "critical_path", "finished_ago_ms", "latency_ms", "leaf", "state", "window_end")
    ),
    # Facts of journals
    *(Changed("unflushed", f"table {name}", "*", _OF_JOURNALS) for name in ("critical_path*", "window_parts")),
    Changed("unflushed", "view paths_by_hour", "*", _OF_JOURNALS),
    Changed("unflushed", "cookbook 1[78]", "*", _OF_JOURNALS),
    # Pages
    Changed("*", "page of the history", "*erminal operators, SLAs and objectives*", _WORDS_OF_PAGE),
    Changed("*", "page of the history", "At", _WORDS_OF_PAGE),
    Changed("*", "page of the history", "20??-??-?? ??:??:??", _WORDS_OF_PAGE),
    Changed("*", "view paths_by_hour", "p[59]0_ms", _NEIGHBOUR),
    Changed("*", "page of the SLAs", "*Each check looks at the rows *", _WORDS_OF_PAGE),
    Changed("*", "start page", "Topologies at", _WORDS_OF_PAGE),
    Changed("*", "start page", "*UTC*. This page refreshes itself.", _WORDS_OF_PAGE),
    Changed("*", "start page", "as of", _WORDS_OF_PAGE),
    Changed("*", "start page", "since", _WORDS_OF_PAGE),
    Changed("*", "start page", "found broken at", _WORDS_OF_PAGE),
    Changed("kinds", "start page", "12:0?:?[08]", _CROSSED),
    Changed("kinds", "start page", ": 1 of 80 *", _SINGULAR),
    Changed("kinds", "start page", "When it broke: *", _MEASURED),
    Changed("kinds", "start page", "Found at", _MEASURED),
    Changed("kinds", "start page", "2014-05-13", _MEASURED),
    Changed("kinds", "start page", ": 2 of 80 *", _MEASURED),
    Changed("kinds", "start page", ": staleness of board is 12.2 s*", _MEASURED),
    Changed("*", "page of the topology", "0 ms", _WORKED),
    Changed("*", "page of the topology", "100 ms", _WORKED),
    Changed("*", "page of the topology", "–", _WORKED),
    Changed("kinds", "page of the topology", "12:0?:?[08]", _CROSSED),
    Changed(
        "*",
        "page of the topology",
        "The records in and out per second are averages over the last minute.",
        _WORDS_OF_PAGE,
    ),
    Changed("*", "page of the operator*", "on average of the last minute", _WORDS_OF_PAGE),
    Changed("*", "page of the topology", "since", _WORDS_OF_PAGE),
    Changed("*", "page of the topology", "found broken at", _WORDS_OF_PAGE),
    Changed("*", "page of the topology", "latency", _WORDS_OF_PAGE),
    Changed("*", "page of the topology", "moving average", _WORDS_OF_PAGE),
    Changed("*", "page of the topology", "How far each *", _WORDS_OF_PAGE),
    Changed("*", "page of the topology", "Here this window is judged alone*", _WORDS_OF_PAGE),
    Changed("kinds", "page of the topology", "66? ms", _AVERAGE),
    Changed("kinds", "page of the topology", "*, moving average 66? ms, *", _AVERAGE),
    Changed("kinds", "page of the topology", "SLA * holds: *", _SENTENCE),
    Changed("kinds", "page of the topology", "The window keeps the limit of SLA *", _SENTENCE),
    Changed("kinds", "page of the topology", ": 1 of 80 *", _SINGULAR),
    Changed("kinds", "page of the topology", "When it broke: *", _MEASURED),
    Changed("kinds", "page of the topology", "Found at", _MEASURED),
    Changed("kinds", "page of the topology", "2014-05-13", _MEASURED),
    Changed("kinds", "page of the topology", ": 2 of 80 *", _MEASURED),
    Changed("kinds", "page of the topology", ": staleness of board is 12.2 s*", _MEASURED),
    Changed("kinds", "page of the topology", "partition 2: 1 record*", _SINGULAR),
    Changed("job", "page of the topology", ": payments *", _SENTENCE),
    Changed("job", "page of the topology", "It was 5 min 1 s old *", _SENTENCE),
    Changed("job", "page of the topology", "*records that waited unread*", _SENTENCE),
    Changed("job", "page of the operator*", "not checked", _WORDS_OF_PAGE),
    Changed("job", "page of the operator*", "age not judged", _WORDS_OF_PAGE),
    Changed("*", "page of the report", ": largest lag *", _UNTIL),
    Changed("*", "page of the report", "idle until *", _UNTIL),
    Changed("kinds", "page of the report", "1 min ?? s", _UNTIL),
    Changed("kinds", "page of the report", "2014-05-13 12:02:50", _UNTIL),
    Changed("ticking", "page of the report", "1 min 52 s", _UNTIL),
    Changed("ticking", "page of the report", "2 min", _UNTIL),
    Changed("ticking", "page of the report", "2 min 2 s", _UNTIL),
    Changed("ticking", "page of the report", "2014-05-13 12:02:50", _UNTIL),
    Changed("*", "page of the topology", "Here the part of an operator is all *", _WHAT_PARTS_ARE),
    Changed("*", "page of the report", "*before the source*", _WORDS_OF_REPORT),
    Changed("*", "page of the report", "*suppressed", _WORDS_OF_REPORT),
    Changed("*", "page of the report", "[0-9]*% of *", _WORDS_OF_REPORT),
    Changed("flights", "page of the report", "36%", _WORDS_OF_REPORT),
    Changed("kinds", "page of the report", "1%", _WORDS_OF_REPORT),
    Changed("ticking", "page of the report", "1%", _WORDS_OF_REPORT),
    Changed("*", "page of the report", "the walk from a *", _WORDS_OF_REPORT),
    Changed("*", "page of the report", "How far each partition's watermark was *", _WORDS_OF_REPORT),
    Changed("*", "page of the report", "idle_after", _WORDS_OF_REPORT),
    Changed("*", "page of the report", "of its source) or backlogged *", _WORDS_OF_REPORT),
    Changed("flights", "page of the report", "Windows that broke the limit of an SLA, and sums *", _WORDS_OF_REPORT),
    Changed("flights", "page of the report", "too m*", _WORDS_OF_REPORT),
    Changed("*", "page of the report", "SLA *_in_time: *", _SENTENCE),
    Changed("*", "page of the report", "from the end of a window until *", _SENTENCE),
    Changed("*", "page of the report", "Here each window is judged alone*", _SENTENCE),
    Changed("*", "page of the report", "*: source, median latency *", _WORKED),
    Changed("*", "page of the report", "longest part", _PARTS),
    Changed("*", "page of the report", "of the age of a window, the part *", _PARTS),
    Changed("*", "page of the report", "a driver that restarted, *", _PARTS),
    Changed("*", "page of the report", "a partition that blocked the watermark, *", _PARTS),
    Changed("*", "page of the report", "a producer that wrote late, *", _PARTS),
    Changed("*", "page of the report", "records that waited unread for a batch, *", _PARTS),
    Changed("flights", "page of the report", "*windows broke the limit of an SLA.", _OF_EXACT),
    Changed("flights", "page of the report", "; its part of the age of *", _OF_EXACT),
    Changed("flights", "page of the report", "12", _OF_EXACT),
    Changed("flights", "page of the report", "2", _OF_EXACT),
    Changed("flights", "page of the report", "21", _OF_EXACT),
    Changed("flights", "page of the report", "257", _OF_EXACT),
    Changed("flights", "page of the report", "4", _OF_EXACT),
    Changed("flights", "page of the report", "72[17]", _OF_EXACT),
    Changed("flights", "page of the report", "[24] s", _OF_EXACT),
    Changed("flights", "page of the report", "1 d 7 h", _OF_EXACT),
    Changed("flights", "page of the report", "12 h 57 min", _OF_EXACT),
    Changed("flights", "page of the report", "18 h 14 min", _OF_EXACT),
    Changed("flights", "page of the report", "42 min 4 s", _OF_EXACT),
    Changed("flights", "page of the report", "1 h 43 min", _OF_EXACT),
    Changed("flights", "page of the report", "15 h [34][90] min", _OF_EXACT),
    Changed("flights", "page of the report", "over", _AT_MOST_THE_SLOWEST),
    Changed("flights", "page of the report", ": 11? of the 135 places shown have *", _AT_MOST_THE_SLOWEST),
    Changed("flights", "page of the report", "2 d 21 h", _OF_EXACT),
    Changed("flights", "page of the report", "2 d 6 h", _OF_EXACT),
    Changed("flights", "page of the report", "[089]*%", _SHARES),
    Changed("flights", "page of the report", "share", _SHARES),
    Changed("flights", "page of the report", "usual share", _SHARES),
    Changed("flights", "page of the report", "–", _SHARES),
    Changed("*", "page of the SLAs", "The state at", _WORDS_OF_PAGE),
    Changed("*", "page of the SLAs", "The SLAs were checked at", _WORDS_OF_PAGE),
    Changed("*", "page of the SLAs", "Badges and cause are of", _WORDS_OF_PAGE),
    Changed("*", "page of the SLAs", "UTC, *by run", _WORDS_OF_PAGE),
    Changed("*", "page of the SLAs", "*This page refreshes itself.", _WORDS_OF_PAGE),
    Changed("*", "page of the SLAs", ".", _WORDS_OF_PAGE),
    Changed("*", "page of the SLAs", "found at", _WORDS_OF_PAGE),
    Changed("*", "page of the SLAs", "2014-05-13", _WORDS_OF_PAGE),
    Changed("*", "page of the SLAs", "12:14:01", _WORDS_OF_PAGE),
    Changed("*", "page of the SLAs", "if broken", _WORDS_OF_PAGE),
    Changed("kinds", "page of the SLAs", "no", _WORDS_OF_PAGE),
    Changed("kinds", "page of the SLAs", "no, *", _WORDS_OF_PAGE),
    Changed("kinds", "page of the SLAs", "critical", _WORDS_OF_PAGE),
    Changed("kinds", "page of the SLAs", "warning", _WORDS_OF_PAGE),
    Changed("kinds", "page of the SLAs", "12:0?:?[08]", _CROSSED),
    Changed("*", "page of the SLAs", "Expectations of *", _WHOLE),
    Changed("*", "page of the SLAs", "* expectations hold*", _WHOLE),
    Changed("kinds", "page of the SLAs", "are about the *", _WHOLE),
    Changed("kinds", "page of the SLAs", "sla_status", _WHOLE),
    Changed("kinds", "page of the SLAs", "outcomes", _WHOLE),
    Changed("kinds", "page of the SLAs", "Outcomes add up; *", _WHOLE),
    Changed("kinds", "page of the SLAs", "1 of 80 *", _SINGULAR),
    Changed("kinds", "page of the SLAs", "producer_ahead: *", _SINGULAR),
    *(
        Changed("kinds", "page of the SLAs", line, _CONTRACTS)
        for line in (
            *(", columns only", "* tables keep their contracts.*", "? of ? hold", "batch jobs", "groups", "main", "–"),
            *("[0-9]", "[0-9][0-9]", "[0-9][0-9][0-9]", "[0-9],[0-9][0-9][0-9]"),
            *("clock_skew", "critical_path_leaves", "disorder_buckets", "dq_results", "emission_metrics"),
            *("held_records", "late_records", "latency_bucket_rollup", "latency_buckets", "operator_latency"),
            *(
                "operator_state",
                "operator_tasks",
                "outcomes",
                "quarantine",
                "sla_alerts",
                "undeliverable",
                "watermarks",
            ),
            *("alerts", "dead_letters", "expectation_results", "latency_minutes", "operator_batches"),
            *("partition_batches", "state_changes"),
        )
    ),
)
MACHINE = (
    (re.compile(r"/\S*?/project\b"), "PROJECT"),
    # Workers of shards are processes of their own, which tell the machine's name. The stored answers are those of `vm`.
    (re.compile(rf"\A{re.escape(platform.node())}\Z"), "vm"),
    # delta-rs, which merges current rows, dates its commits by a clock of its own.
    (re.compile(r"(since version \d+), [-\d:.TZ]+"), r"\1, COMMITTED"),
    (re.compile(r'"at": "[-\d:.TZ]+"'), '"at": "COMMITTED"'),
)
"""What depends on the machine or the run, and what stands for it: the only place that leaves something out."""
OF_THE_READER = ("as_of", "stale_ms", "watermark_behind_ms")
"""Columns of `freshness_now` that follow DuckDB's own clock."""
MOST_ROWS = 120
"""Of an answer with more rows each column is stored as a digest of its cells."""

Cell = Any
"""A value of JSON."""


class Answer(NamedTuple):
    """Column names, and rows of values of JSON, in an order that follows from the values."""

    columns: tuple[str, ...]
    rows: tuple[tuple[Cell, ...], ...]


# The questions


class Asker:
    """Asks *scene* questions by name."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self._tables = Warehouse(scene.warehouse)

    def names(self) -> Iterator[str]:
        """Yields the questions of today that the scene is for."""
        yield from (name for name in self._all_names() if self.scene.asks(name))

    def _all_names(self) -> Iterator[str]:
        hidden = [name for name in TABLES if name == "table_files"]
        user = [name for name in self._tables.tables if name not in TABLES and not name.startswith(CHANGES_OF)]
        yield from (f"table {name}" for name in sorted([*TABLES, *user]) if name not in hidden)
        yield from (f"view {view.name}" for view in views())
        yield "view kafka_metrics"
        yield from (f"cookbook {int(number):02}" for number in QUESTIONS if self._has(QUESTIONS[number]))
        yield from self._documents
        yield from self._texts
        if self.scene.kept is not None:
            yield from (f"trace record {place}" for place in self.scene.records)
            yield from (f"trace row {table} {key}" for table, key in self.scene.rows)

    def answer(self, question: str) -> Answer:
        """Returns the answer to *question*; one that is refused is the text of the error."""
        try:
            return self._answer(question)
        except TidemarkError as error:
            return of_text(f"refused: {error}")

    def _answer(self, question: str) -> Answer:
        kind, _, name = question.partition(" ")
        if kind == "cookbook":
            return self._ask(self._in_own_words(QUESTIONS[str(int(name))]))
        if kind == "table" or kind == "view":
            text = MOVED.get(name, f'SELECT * FROM "{name}"')
            return self._ask(text, without=OF_THE_READER if name == "freshness_now" else ())
        if question in self._documents:
            return of_document(self._documents[question]())
        if question in self._texts:
            return of_text(self._texts[question]())
        which, _, rest = name.partition(" ")
        assert kind == "trace", question
        return of_text(self._trace(rest) if which == "record" else self._trace_row(*rest.split(" ", 1)))

    def _ask(self, text: str, without: Sequence[str] = ()) -> Answer:
        answer = self._tables.ask(text)
        kept = [n for n, name in enumerate(answer.columns) if name not in without]
        rows = [tuple(plain(row[n]) for n in kept) for row in answer.rows]
        return Answer(tuple(answer.columns[n] for n in kept), tuple(sorted(rows, key=_order)))

    def _in_own_words(self, text: str) -> str:
        for word, own in self.scene.words.items():
            text = text.replace(word, own)
        return text

    def _has(self, text: str) -> bool:
        return "flight_board" not in text or "flight_board" in self._tables.tables

    @cached_property
    def _documents(self) -> dict[str, Callable[[], object]]:
        """Questions with answers in JSON."""
        scene, name, at = self.scene, self.scene.topology.name, iso(self.scene.at_ms)
        topology = name if scene.topology.jobs else str(scene.home / "topologies" / f"{name}.toml")
        commands = {
            "why": ("why", topology, "--at", at),
            "status": ("status",),
            "topology": ("topology", topology, "--at", at),
            "path": ("path", topology, "--last", "2"),
            "incidents": ("incidents", topology, "--all"),
        }
        if not scene.topology.jobs:
            commands["bound"] = ("bound", topology)
        tables = [o.table for o in scene.topology.operators.values() if getattr(o, "complete_ms", None) and o.table]
        for table in tables:
            commands[f"complete {table}"] = ("complete", table, "--at", iso(scene.reported.start_ms + 5_000))
        found: dict[str, Callable[[], object]] = {
            f"command {label}": lambda words=words: json.loads(self._command(*words, "--format", "json"))
            for label, words in commands.items()
        }
        found["facts of the report"] = lambda: _in_order(page_facts(self._own_tables, scene.topology, scene.reported))
        found["reconcile"] = lambda: _fields(
            reconcile(
                scene.kept.tracer(),  # type: ignore[union-attr]
                scene.kept._play.broker.offsets,  # type: ignore[union-attr]
                "events",
                start_ms=scene.reported.start_ms,
                end_ms=scene.reported.end_ms,
            )
        )
        if scene.kept is None:
            del found["reconcile"]
        return found

    @cached_property
    def _texts(self) -> dict[str, Callable[[], str]]:
        """Questions with answers that people read."""
        scene, topology = self.scene, self.scene.topology
        file = topology.name if topology.jobs else str(scene.home / "topologies" / f"{topology.name}.toml")
        at = iso(scene.at_ms)
        work = next((o.name for o in topology.operators.values() if o.kind == "aggregate"), topology.terminals[0])
        found: dict[str, Callable[[], str]] = {
            "text of whatif": lambda: "\n".join(
                self._command("whatif", file, *how)
                for how in (("--trigger", "500 ms"), ("--bound", "1 s"), ("--operator", work, "--scale", "0.5"))
            ),
            "text of topology": lambda: self._command("topology", file, "--at", at),
            "text of incidents": lambda: self._command("incidents", file, "--all"),
            "text of suggest": lambda: self._command("suggest", "slas", file),
            "metrics": self._metrics,
            "start page": lambda: _seen(start_page([self._whole_model], folder=scene.home)),
            "page of the topology": lambda: _seen(topology_page(self._whole_model, self._moving(), topology)),
            "page of the report": lambda: _seen(
                interval_page(page_facts(self._own_tables, topology, scene.reported, now_ms=scene.at_ms))
            ),
            "page of the SLAs": lambda: _seen(sla_page(scene.warehouse, topology.name, self._whole_model)),
            "page of the history": lambda: _seen(
                history_page(topology.name, self._history([*topology.terminals]), at_ms=scene.at_ms)
            ),
        }
        source = topology.outside_sources[0].name
        found[f"page of the operator {source}"] = lambda: _seen(self._operator_page(source))
        return found

    @cached_property
    def _own_tables(self) -> Warehouse:
        return Warehouse(self.scene.warehouse, topology=self.scene.topology.name)

    @cached_property
    def _whole_model(self) -> dict[str, Any]:
        return self._model()

    def _model(self, operator: str | None = None) -> dict[str, Any]:
        scene = self.scene
        promised = promises(known_slas(scene.topology).specs)
        return page_model(
            self._own_tables, scene.layout, scene.topology, promised, at_ms=scene.at_ms, operator=operator
        )

    def _moving(self) -> dict[str, Any]:
        return document(self.scene.warehouse, self.scene.topology, at_ms=self.scene.at_ms)

    def _history(self, operators: list[str], subjects: Sequence[str] = ()) -> Any:
        return history(
            self._own_tables,
            self.scene.topology.name,
            operators,
            ChartSpan.HOUR,
            at_ms=self.scene.at_ms,
            subjects=subjects,
        )

    def _operator_page(self, operator: str) -> str:
        topology, subjects = self.scene.topology, subjects_of(self.scene.topology, operator)
        is_source = operator in {each.name for each in topology.outside_sources} and not topology.jobs
        rows = bound.bound_rows(self.scene.warehouse, topology, source=operator) if is_source else []
        return operator_page(
            self._model(operator),
            self._moving(),
            topology,
            operator,
            self._history([operator], subjects),
            [dict(zip(bound.COLUMNS, row, strict=True)) for row in rows],
        )

    def _metrics(self) -> str:
        registry = CollectorRegistry()
        registry.register(Exporter(self.scene.layout, lambda: [self.scene.topology], clock=lambda: self.scene.at_ms))
        return generate_latest(registry).decode()

    def _trace(self, place: str) -> str:
        assert self.scene.kept is not None
        trace = self.scene.kept.tracer().trace(trace_command.record_place(place))
        return f"{trace_command.as_text(trace)}\n{json.dumps(plain(trace.document), indent=1)}"

    def _trace_row(self, table: str, key: str) -> str:
        assert self.scene.kept is not None
        row = trace_row(self.scene.kept.tracer(), table, key)
        return f"{trace_command.row_as_text(row)}\n{json.dumps(plain(row.document), indent=1)}"

    def _command(self, *words: str) -> str:
        home = self.scene.home
        done = tidemark(home, "--warehouse", str(self.scene.warehouse), *words, **{VARIABLE: str(home)})
        return done.stdout or json.dumps({"refused": done.stderr})


# Answers


def plain(value: Any) -> Cell:
    """Returns *value* as one of JSON that no machine and no run changes; instants are ISO 8601."""
    match value:
        case datetime():
            return iso(round(value.timestamp() * 1_000))
        case date():
            return value.isoformat()
        case bool() | int() | None:
            return value
        case float():
            return float(f"{value:.10g}") if value == value and abs(value) != float("inf") else str(value)
        case Decimal():
            return plain(float(value))
        case bytes() | bytearray():
            return bytes(value).decode("latin-1")
        case Mapping():
            return {str(name): plain(of) for name, of in value.items()}
        case str():
            return of_any_machine(str(value))
        case list() | tuple() | set() | frozenset():
            return [plain(of) for of in (sorted(value, key=str) if isinstance(value, set | frozenset) else value)]
        case _:
            return plain(_fields(value)) if is_dataclass(value) else of_any_machine(str(value))


def _fields(value: Any) -> dict[str, Any]:
    """Returns the fields of a dataclass, without the topology that it may be about."""
    return {each.name: getattr(value, each.name) for each in fields(value) if each.name != "topology"}


def _in_order(facts: PageFacts) -> dict[str, Cell]:
    """Returns *facts* with lists in an order that follows from their rows: charts need none."""
    return {
        name: sorted(value, key=lambda row: _order((row,))) if isinstance(value, list) else value
        for name, value in plain(facts).items()
    }


def of_any_machine(text: str) -> str:
    for pattern, word in MACHINE:
        text = pattern.sub(word, text)
    return text


def of_text(text: str) -> Answer:
    """Returns the lines of *text*, with one blank where columns are aligned by several."""
    lines = [re.sub(r"\s+", " ", line).strip() for line in of_any_machine(text).splitlines()]
    return Answer(("line",), tuple((line,) for line in lines if line))


def of_document(value: object) -> Answer:
    """Returns a row for each value of a document: its path, and the value."""
    return Answer(("path", "value"), tuple(_values("", plain(value))))


def _values(path: str, value: Cell) -> Iterator[tuple[str, Cell]]:
    match value:
        case dict():
            for name in sorted(value):
                yield from _values(f"{path}.{name}" if path else name, value[name])
        case list() if any(isinstance(each, dict | list) for each in value):
            for number, each in enumerate(value):
                yield from _values(f"{path}[{number}]", each)
        case _:
            yield path, value


def _seen(page: str) -> str:
    """Returns what a page in HTML shows, a line for each element."""
    body = re.sub(r"(?s)<(style|script|head)\b.*?</\1>", "", page)
    return html.unescape(re.sub(r"<[^>]*>", "\n", body))


def _order(row: tuple[Cell, ...]) -> str:
    return json.dumps(row, ensure_ascii=False)


# Comparing


def renamed(question: str, answer: Answer) -> Answer:
    """Returns a stored *answer* under the new names."""
    own = f"{question}: "
    names = {old: new for old, new in RENAMED.items() if ": " not in old}
    names |= {old.removeprefix(own): new for old, new in RENAMED.items() if old.startswith(own)}
    if not names and not WORDS:
        return answer
    words = re.compile(rf"\b({'|'.join(map(re.escape, [*WORDS] or ['(?!)']))})\b") if WORDS else None

    def value(of: Cell) -> Cell:
        match of:
            case dict():
                return {names.get(name, name): value(each) for name, each in of.items()}
            case list():
                return [value(each) for each in of]
            case str():
                return WORDS.get(of, of)
        return of

    if answer.columns == ("line",):
        lines = [words.sub(lambda found: WORDS[found[1]], line) if words else line for (line,) in answer.rows]
        return Answer(answer.columns, tuple((line,) for line in lines))
    if answer.columns == ("path", "value"):
        rows = [
            (re.sub(r"\w+", lambda found: names.get(found[0], found[0]), path), value(of)) for path, of in answer.rows
        ]
        return Answer(answer.columns, tuple(sorted(rows, key=_order)))
    if is_digest(answer):
        return Answer(answer.columns, tuple((names.get(row[0], row[0]), *row[1:]) for row in answer.rows))
    rows_of_values = sorted((tuple(map(value, row)) for row in answer.rows), key=_order)
    return Answer(tuple(names.get(name, name) for name in answer.columns), tuple(rows_of_values))


def differences(scene: str, question: str, stored: Answer, found: Answer) -> list[str]:
    """Returns what *found* has otherwise than *stored*, whose names are the new ones.

    A table may have new columns, and its columns may have another order.
    """
    may_change = [each for each in CHANGED if fnmatch(scene, each.scene) and fnmatch(question, each.question)]

    def is_left_out(column: str) -> bool:
        return any(fnmatch(column, each.column) for each in may_change)

    if stored.columns != found.columns and found.columns == ("line",):
        return [f"{scene}, {question}: {line}" for (line,) in found.rows]
    if stored.columns in UNNAMED:
        kept_rows = (
            Answer(each.columns, tuple(row for row in each.rows if not is_left_out(str(row[0]))))
            for each in (stored, found)
        )
        return _told(scene, question, *kept_rows)
    if question.startswith("cookbook") and not is_digest(stored) and stored.columns != found.columns:
        return [f"{scene}, {question}: its columns were {stored.columns}, and are {found.columns}"]
    names = [row[0] for row in stored.rows] if is_digest(stored) else stored.columns
    kept = [name for name in names if not is_left_out(name)]
    if missing := [name for name in kept if name not in found.columns]:
        return [f"{scene}, {question}: it lacks the columns {', '.join(missing)}; it has {', '.join(found.columns)}"]
    if not kept:
        return []
    same = picked(found, kept)
    if is_digest(stored):
        rows = tuple(row for row in stored.rows if row[0] in kept)
        return _told(scene, question, Answer(stored.columns, rows), digest(same))
    return _told(scene, question, picked(stored, kept), same)


UNNAMED = (("line",), ("path", "value"))
"""Columns of texts and documents."""
OF_DIGESTS = ("column", "rows", "digest")


def is_digest(answer: Answer) -> bool:
    return answer.columns == OF_DIGESTS


def picked(answer: Answer, names: Sequence[str]) -> Answer:
    """Returns the columns *names* of *answer*."""
    places = [answer.columns.index(name) for name in names]
    rows = sorted((tuple(row[n] for n in places) for row in answer.rows), key=_order)
    return Answer(tuple(names), tuple(rows))


def digest(answer: Answer) -> Answer:
    """Returns a row for each column of *answer*, with a digest of its cells in any order."""
    rows = []
    for n, name in enumerate(answer.columns):
        cells = sorted(_order((row[n],)) for row in answer.rows)
        rows.append((name, len(cells), hashlib.sha256("\n".join(cells).encode()).hexdigest()[:16]))
    return Answer(OF_DIGESTS, tuple(rows))


def _told(scene: str, question: str, stored: Answer, found: Answer) -> list[str]:
    """Returns the rows that only one of two answers has, at most MOST_TOLD of each."""
    before, now = Counter(map(_order, stored.rows)), Counter(map(_order, found.rows))
    if before == now:
        return []
    heading = f"{scene}, {question}: {', '.join(stored.columns)}"
    lost = [f"  was {row}" for row in sorted((before - now).elements())[:MOST_TOLD]]
    return [heading, *lost, *(f"  is  {row}" for row in sorted((now - before).elements())[:MOST_TOLD])]


MOST_TOLD = 5


def unused() -> list[str]:
    """Returns what of RENAMED, WORDS, MOVED and CHANGED no stored answer has."""
    answers = [(scene, question, answer) for scene in SCENES for question, answer in read(scene).items()]
    content = "\n".join((FOLDER / f"{scene}.jsonl").read_text(encoding="utf-8") for scene in SCENES)
    known = {*re.findall(r"\w+", content)}
    words = [word for word in [*WORDS, *(old.rpartition(": ")[2] for old in RENAMED)] if not known & {*word.split()}]
    tables = [name for name in MOVED if f'"table {name}"' not in content and f'"view {name}"' not in content]
    new_names = [(scene, question, renamed(question, answer)) for scene, question, answer in answers]
    changed = [each for each in CHANGED if not any(_concerns(each, *answer) for answer in new_names)]
    return [*words, *tables, *map(str, changed)]


def _concerns(each: Changed, scene: str, question: str, answer: Answer) -> bool:
    of_rows = answer.columns in UNNAMED or is_digest(answer)
    names = [str(row[0]) for row in answer.rows] if of_rows else answer.columns
    of_question = fnmatch(scene, each.scene) and fnmatch(question, each.question)
    # A line of a text, or a value of a document, may be new.
    return of_question and (answer.columns in UNNAMED or any(fnmatch(name, each.column) for name in names))


# Files


def read(scene: str) -> dict[str, Answer]:
    """Returns the stored answers of *scene* by question."""
    answers: dict[str, Answer] = {}
    rows: list[tuple[Cell, ...]] = []
    question, columns = "", ()
    for line in [
        *(FOLDER / f"{scene}.jsonl").read_text(encoding="utf-8").splitlines(),
        '{"question": "", "columns": []}',
    ]:
        match json.loads(line):
            case {"question": next_question, "columns": names}:
                if question:
                    answers[question] = Answer(columns, tuple(rows))
                question, columns, rows = next_question, tuple(names), []
            case row:
                rows.append(tuple(row))
    return answers


def write(scene: str, answers: Mapping[str, Answer]) -> None:
    """Stores the answers of *scene*, a line for each row."""
    lines = []
    for question, answer in answers.items():
        stored = digest(answer) if len(answer.rows) > MOST_ROWS and answer.columns not in UNNAMED else answer
        lines.append(json.dumps({"question": question, "columns": stored.columns}))
        lines += [json.dumps(row, ensure_ascii=False, separators=(",", ":")) for row in stored.rows]
    FOLDER.mkdir(exist_ok=True)
    (FOLDER / f"{scene}.jsonl").write_text("\n".join(lines) + "\n", encoding="utf-8")


@contextmanager
def asker(scene: str, home: Path) -> Iterator[Asker]:
    """Plays *scene* in the project *home*, and gives what asks it, while the clock stands still."""
    with CLOCK.set_up(), pytest.MonkeyPatch.context() as patch:
        played = SCENES[scene](home)
        patch.setenv(VARIABLE, str(home))
        CLOCK.read = lambda: played.at_ms
        yield Asker(played)


def main() -> None:
    """Stores the answers of this checkout, of all scenes or of those that are named."""
    for scene in sys.argv[1:] or SCENES:
        with TemporaryDirectory() as folder, asker(scene, Path(folder) / "project") as asks:
            write(scene, {question: asks.answer(question) for question in asks.names()})


if __name__ == "__main__":
    main()
