"""Summarizes a run of streams from its Delta tables."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from textwrap import fill, indent

from tidemark.facts.answers import Tables, answers_over
from tidemark.facts.checks import newest_check
from tidemark.model.project.layout import Layout
from tidemark.model.settings.intervals import iso
from tidemark.model.settings.lengths import for_people
from tidemark.model.tables.catalog import BECAME, CAME_IN, HOP_UPDATE, SLA_RESULTS, TABLES
from tidemark.query.inventory import inventory
from tidemark.query.sql import QueryResult
from tidemark.query.text_table import format_table
from tidemark.selection import present
from tidemark.semantics.buckets import quantile
from tidemark.semantics.sla import Verdict

MAY_BE_EMPTY = frozenset(
    {
        "decisions",
        "maintenance",
        "published_intervals",
        "requeued",
        "table_ages",
        "topology_changes",
    }
)
"""Tables that a good run leaves without rows, or does not make."""
WIDTH = 118

RECORDS = """
    SELECT operator AS source, sum(records_in) AS records, sum(quarantined) AS quarantined, sum(late) AS late,
           sum(duplicate) AS duplicate, sum(passed) AS passed_on
    FROM operator_batches WHERE kind = 'source' GROUP BY operator ORDER BY records DESC, operator
"""
LATENCY = """
    WITH histograms AS (
        SELECT sub_topology, operator, list((b.bucket, b.n)) AS counts
        FROM (SELECT sub_topology, operator, explode(buckets) AS b FROM latency_minutes) GROUP BY ALL
    ), whole AS (
        SELECT sub_topology, operator, any_value(kind) AS kind, sum(n) AS n, min(min_ms) AS lowest,
               sum(sum_ms) / sum(n) AS average, max(max_ms) AS highest
        FROM latency_minutes GROUP BY ALL
    )
    SELECT sub_topology, operator, kind, n::BIGINT, lowest, round(average)::BIGINT, counts, highest
    FROM whole JOIN histograms USING (sub_topology, operator) ORDER BY average
"""
LATENCY_COLUMNS = ("sub_topology", "operator", "kind", "n", "min_ms", "avg_ms", "p50_ms", "p99_ms", "max_ms")
EMISSION = """
    SELECT operator, kind, sum(records_in)::BIGINT AS updates_in, sum(emitted)::BIGINT AS emitted,
           sum(suppressed)::BIGINT AS suppressed,
           round(100 * sum(suppressed) / sum(emitted + suppressed), 1) AS suppressed_percent
    FROM operator_batches GROUP BY ALL HAVING sum(emitted + suppressed) > 0 ORDER BY suppressed DESC, operator
"""
WATERMARKS = """
    SELECT coalesce(source, 'all of ' || sub_topology) AS source, coalesce(partition::VARCHAR, 'all') AS partition,
           watermark, newest_timestamp AS newest_record, activity, blocked_by
    FROM partition_batches AS p
    QUALIFY row_number() OVER (PARTITION BY sub_topology, source, partition ORDER BY batch_id DESC) = 1
    ORDER BY (SELECT min(min_ms) FROM operator_batches AS o WHERE o.sub_topology = p.sub_topology),
             p.source NULLS LAST, p.partition NULLS LAST
"""
CRITICAL_PATHS = """
    SELECT epoch_ms(window_end), path, state, before_source_ms + latency_ms AS age_ms, before_source_ms
    FROM critical_paths
    WHERE path IS NOT NULL ORDER BY window_end DESC LIMIT 3
"""
SLA_COLUMNS = ("sla", "judged", "verdict", "culprit", "observed", "warning_from", "error_from")
LENGTHS = ("observed_ms", "warn_after_ms", "error_after_ms")
QUARANTINE = "SELECT reason, count(*) AS records FROM quarantine GROUP BY ALL ORDER BY ALL"
UNBALANCED = f"""
    SELECT sub_topology, batch_id, operator FROM operator_batches
    WHERE {" + ".join(CAME_IN)} <> {" + ".join(BECAME)} ORDER BY ALL
"""


def summary(home: Path, *, injected: int | None = None) -> str:
    """Returns the summary of the warehouse at *home*.

    It is plain text of at most 120 columns. *injected* is the number of injected bad records, if known.
    """
    warehouse = answers_over(home)
    sections: Mapping[str, Callable[[], str]] = {
        "Records in": lambda: _table(warehouse.ask(RECORDS)),
        "End-to-end latency, ms (finish clock − record timestamp)": lambda: _latency(warehouse.ask(LATENCY)),
        "Emitted and suppressed": lambda: _table(warehouse.ask(EMISSION)),
        "Watermarks": lambda: _table(warehouse.ask(WATERMARKS)),
        "Critical path of the last closed windows, by the end of the window": lambda: _paths(
            warehouse.ask(CRITICAL_PATHS)
        ),
        "SLAs": lambda: _slas(warehouse, Layout(home)),
        "Tables": lambda: _inventory(home),
        "Quarantine": lambda: _quarantine(warehouse, injected),
        "Accounting": lambda: _accounting(warehouse),
    }
    return "\n\n".join(f"{title}\n{indent(body(), '  ')}" for title, body in sections.items())


def problems(home: Path, *, injected: int) -> Iterator[str]:
    """Yields problems of the run in the warehouse at *home*.

    Problems are accounting that does not close, a table without rows, and a number of bad records in quarantine other
    than *injected*.
    """
    warehouse = answers_over(home)
    unbalanced = warehouse.ask(UNBALANCED).rows
    if unbalanced:
        yield f"the accounting of {len(unbalanced)} batches does not close, the first: {unbalanced[0]}"
    filled = {stored.table for stored in inventory(home) if stored.rows}
    for name in sorted((TABLES.keys() | warehouse.tables.keys()) - MAY_BE_EMPTY - filled):
        yield f"table {name} has no rows"
    yield from unread_hops(warehouse)
    quarantined = sum(n for _, n in warehouse.ask(QUARANTINE).rows)
    if quarantined != injected:
        yield f"{injected} bad records were injected, but {quarantined} are in quarantine"


def unread_hops(warehouse: Tables) -> Iterator[str]:
    """Yields a problem for each hop whose reader has not read all."""
    for hop in warehouse.tables:
        if not hop.startswith("hop_"):
            continue
        ((handed,),) = warehouse.ask(f"SELECT count(*) FROM {hop} WHERE {HOP_UPDATE}").rows
        source = f"{hop.removeprefix('hop_')}_source"
        read_sql = "SELECT coalesce(sum(records_in), 0) FROM operator_batches WHERE operator = ?"
        ((read,),) = warehouse.ask(read_sql, [source]).rows
        if handed != read:
            yield f"{hop} was handed {handed} updates, but {source} has read {read}"


def _table(answer: QueryResult) -> str:
    return format_table(answer.columns, answer.rows) if answer.rows else "nothing"


def _latency(answer: QueryResult) -> str:
    """Formats the histograms of *answer* by median and 99th percentile."""
    rows = []
    for *before, lowest, average, counts, highest in answer.rows:
        quantiles = [round(quantile(counts, q, min_ms=lowest, max_ms=highest) or 0) for q in (0.5, 0.99)]
        rows.append((*before, lowest, average, *quantiles, highest))
    return format_table(LATENCY_COLUMNS, rows) if rows else "nothing"


def _paths(answer: QueryResult) -> str:
    wrapped: list[str] = []
    for end_ms, path, state, age_ms, before_ms in answer.rows:
        remark = "" if state == "measured" else f"  ({state})"
        line = f"{iso(end_ms)}  {_age(age_ms, before_ms)}{path}{remark}"
        wrapped.append(fill(line, WIDTH, subsequent_indent=" " * 10, break_on_hyphens=False))
    return "\n".join(wrapped) or "no window was closed"


def _age(age_ms: int | None, before_ms: int) -> str:
    """Formats the age of a window at the end of its path.

    The path took a part of it. The text is empty if the path has no source.
    """
    return "" if age_ms is None else f"{age_ms:,} ms old: {before_ms:,} ms before the path, then "


def _slas(warehouse: Tables, layout: Layout) -> str:
    rows, notes = [], []
    for path in warehouse.tables.get(SLA_RESULTS.name, ()):
        check = newest_check(warehouse.stored, layout, path.parent.name)
        for row in check.rows if check else ():
            judged = (row["sla"], f"{row['subject']} {row['measure']}", row["verdict"], row["culprit"])
            lengths_ms = [row[name] for name in LENGTHS]
            rows.append((*judged, *(None if ms is None else for_people(round(ms)) for ms in lengths_ms)))
            if _is_excused(row["verdict"], *lengths_ms):
                note = f"{row['sla']} passes: {row['message']}"
                notes.append(fill(note, WIDTH - 2, subsequent_indent="  ", break_on_hyphens=False))
    return "\n".join([format_table(SLA_COLUMNS, rows) if rows else "nothing", *notes])


def _is_excused(verdict: str, observed_ms: float | None, *limits_ms: float | None) -> bool:
    """Returns True if an SLA passes over a limit: its sources had nothing to send."""
    is_over = observed_ms is not None and any(observed_ms >= limit_ms for limit_ms in present(limits_ms))
    return is_over and verdict == Verdict.PASS


def _inventory(home: Path) -> str:
    return format_table(("table", "where", "rows", "files", "bytes", "version"), inventory(home))


def _quarantine(warehouse: Tables, injected: int | None) -> str:
    answer = warehouse.ask(QUARANTINE)
    total = sum(n for _, n in answer.rows)
    compared = "" if injected is None else f" {'=' if total == injected else '≠'} {injected} injected"
    return f"{_table(answer)}\n{total} quarantined{compared}"


def _accounting(warehouse: Tables) -> str:
    ((rows, unbalanced),) = warehouse.ask(
        f"SELECT count(*), (SELECT count(*) FROM ({UNBALANCED})) FROM operator_batches"
    ).rows
    closes = "all close" if unbalanced == 0 else f"{unbalanced} do not close"
    equation = f"in + held before =\n  {' + '.join(BECAME).replace('_', ' ')}"
    return f"{equation}\n{rows:,} rows of operator_batches, one per batch and operator: {closes}"
