"""Latency and emission metrics under the names that Kafka gives them (KIP-613, KIP-557), as a view."""

from __future__ import annotations

VIEW = "kafka_metrics"
READS = ("operator_latency", "emission_metrics")

_OPERATOR_LATENCY = """
    SELECT NULL::VARCHAR AS kind, NULL::VARCHAR AS operator, NULL::VARCHAR AS level, NULL::VARCHAR AS thread_id,
           NULL::VARCHAR AS task_id, NULL::BIGINT AS n, NULL::BIGINT AS min_ms, NULL::BIGINT AS max_ms,
           NULL::BIGINT AS sum_ms, NULL::TIMESTAMPTZ AS finished_at
    WHERE false
"""
_EMISSION_METRICS = """
    SELECT NULL::VARCHAR AS operator, NULL::VARCHAR AS thread_id, NULL::VARCHAR AS task_id,
           NULL::BIGINT AS idempotent_update_skip_total, NULL::DOUBLE AS idempotent_update_skip_rate,
           NULL::TIMESTAMPTZ AS decided_at
    WHERE false
"""
_EMPTY = dict(zip(READS, (_OPERATOR_LATENCY, _EMISSION_METRICS), strict=True))


def view_sql(tables: frozenset[str]) -> str:
    """The statement that makes the view over those of READS that are among *tables*; the others have no rows.

    A stateful operator's latency is that of its store, which is what level TRACE measures; sources and terminal
    operators are nodes. Values are ms, updates, and updates per second; `at` is the finish clock of the batch, or for
    emission its decision time.
    """
    operator_latency, emission_metrics = (_rows(name, tables) for name in READS)
    return f"""
        CREATE VIEW {VIEW} AS
        SELECT metric, metric_group, thread_id, task_id, node_id, recording_level, value, "at" FROM (
        SELECT unnest([
                   {{metric: 'record-e2e-latency-min', value: min_ms::DOUBLE}},
                   {{metric: 'record-e2e-latency-avg', value: sum_ms / n}},
                   {{metric: 'record-e2e-latency-max', value: max_ms::DOUBLE}}
               ], recursive := true),
               if(level = 'trace', 'stream-state-metrics', 'stream-processor-node-metrics') AS metric_group,
               thread_id, task_id, operator AS node_id, upper(level) AS recording_level, finished_at AS "at"
        FROM ({operator_latency})
        UNION ALL BY NAME
        SELECT unnest([
                   {{metric: 'idempotent-update-skip-total', value: idempotent_update_skip_total::DOUBLE}},
                   {{metric: 'idempotent-update-skip-rate', value: idempotent_update_skip_rate}}
               ], recursive := true),
               'stream-processor-node-metrics' AS metric_group,
               thread_id, task_id, operator AS node_id, 'DEBUG' AS recording_level, decided_at AS "at"
        FROM ({emission_metrics}))
    """


def _rows(name: str, tables: frozenset[str]) -> str:
    """All rows of the table *name*, with the columns that the view needs even where there is none."""
    return f"{_EMPTY[name]} UNION ALL BY NAME FROM {name}" if name in tables else _EMPTY[name]
