"""Reports each finding of a running topology once, when it appears."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tidemark.errors import TidemarkError
from tidemark.facts.answers import answers_over

FINDINGS = (
    (
        "operator_batches",
        """
        SELECT format('first latency: {:,} ms from the time of a record until {} had its result, on average of its '
                      'first batch', (sum(sum_ms) / sum(n))::BIGINT, any_value(operator))
        FROM (
            FROM operator_batches WHERE kind = 'sink' AND n > 0
            QUALIFY (operator, batch_id) = first_value((operator, batch_id)) OVER (ORDER BY finished_at, operator)
        ) HAVING count(*) > 0
        """,
    ),
    (
        "operator_batches",
        """
        SELECT format('emit on change: {} has left {:,} of {:,} updates unsent, which changed nothing',
                      arg_max(operator, suppressed), max(suppressed), arg_max(records_in, suppressed))
        FROM (SELECT operator, sum(suppressed)::BIGINT AS suppressed, sum(records_in)::BIGINT AS records_in
              FROM operator_batches GROUP BY operator)
        HAVING max(suppressed) >= 100
        """,
    ),
    (
        "dead_letters",
        """
        SELECT format('quarantine: a bad record, {}, at offset {} of {} partition {} is set aside',
                      arg_min(reason, batch_id), arg_min("offset", batch_id), any_value(topic),
                      arg_min("partition", batch_id))
        FROM quarantine HAVING count(*) > 0
        """,
    ),
    (
        "partition_batches",
        """
        SELECT format('watermark: {} partition {} is idle, so the watermark does not wait for it until its next record',
                      arg_min(source, batch_id), arg_min("partition", batch_id))
        FROM partition_batches
        WHERE "partition" IS NOT NULL AND activity = 'idle' AND newest_timestamp IS NOT NULL
              AND source IN (SELECT blocked_by FROM partition_batches WHERE source IS NULL)
        HAVING count(*) > 0
        """,
    ),
    (
        "completeness",
        """
        SELECT format('complete: the watermark has passed the interval from {} to {}: complete_flights will run for it',
                      strftime(min(interval_start), '%Y-%m-%dT%H:%M:%SZ'),
                      strftime(min(interval_end), '%Y-%m-%dT%H:%M:%SZ'))
        FROM completeness HAVING count(*) > 0
        """,
    ),
    (
        "completeness",
        """
        SELECT format('reopened: a record came to the interval from {} to {} after the watermark had passed it, so {} '
                      'of its source is too short for it; results are not final while late records are accepted',
                      strftime(interval_start, '%Y-%m-%dT%H:%M:%SZ'), strftime(interval_end, '%Y-%m-%dT%H:%M:%SZ'),
                      if(by_idleness, 'idle_after or the bound', 'the bound'))
        FROM (
            SELECT interval_start, interval_end, batch_id, cause, first_value(by_idleness) OVER (
                PARTITION BY topology, operator, interval_start ORDER BY batch_id
            ) AS by_idleness FROM completeness
        ) WHERE cause = 'late_record' ORDER BY batch_id LIMIT 1
        """,
    ),
    (
        "sla_results",
        """
        SELECT format('SLAs: the first check by Airflow, for {} UTC, has found {} of {} broken{}',
                      strftime(min(checked_at), '%H:%M:%S'),
                      count_if(verdict NOT IN ('pass', 'unknown')), count(*),
                      if(bool_or(verdict = 'unknown'),
                         format(', and could not measure {} yet', count_if(verdict = 'unknown')), ''))
        FROM sla_results HAVING count(*) > 0
        """,
    ),
)
"""The table of each finding, and the query for its sentence.

The query has no row before the finding occurs.
"""


@dataclass
class Story:
    """Findings of the warehouse at *home*; `left` were not reported yet."""

    home: Path
    left: list[tuple[str, str]] = field(default_factory=lambda: list(FINDINGS))

    def new(self) -> Iterator[str]:
        """Yields the sentences of findings that occurred since the last call.

        If all were reported no table is read. A finding that cannot be read is told with the reason, and not asked for
        again.
        """
        if not self.left:
            return
        warehouse = answers_over(self.home)
        for finding in list(self.left):
            table, text = finding
            if table not in warehouse.tables:
                continue
            try:
                rows = warehouse.ask(text).rows
            except TidemarkError as error:
                rows = ((f"nothing can be said of {table}: {error}",),)
            if rows:
                self.left.remove(finding)
                yield str(rows[0][0])
