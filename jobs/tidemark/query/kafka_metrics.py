"""Defines a view with the metrics of latency and of emission under Kafka's names (KIP-613, KIP-557)."""

from __future__ import annotations

from tidemark.query.views import View

VIEW = View(
    "kafka_metrics",
    "metric of KIP-613 or KIP-557, task and node. The latency of a stateful operator is that of its store (level "
    "TRACE). value: ms, updates, or updates per second; n: number of records in a latency, null for metrics of "
    "emission; sum(value * n) / sum(n) is the exact average of record-e2e-latency-avg over rows. at: finish clock of "
    "the batch, or its decision time for metrics of emission",
    """
    WITH tasks AS (
        SELECT topology, sub_topology, operator, level, thread_id, finished_at, decided_at, task.task_id, task.n,
               task.min_ms, task.max_ms, task.sum_ms, task.idempotent_update_skip_total,
               task.idempotent_update_skip_rate
        FROM (SELECT *, unnest(tasks) AS task FROM operator_batches)
    )
    SELECT topology, sub_topology, metric, metric_group, thread_id, task_id, node_id, recording_level, value, n, "at"
    FROM (
    SELECT unnest([
               {metric: 'record-e2e-latency-min', value: min_ms::DOUBLE},
               {metric: 'record-e2e-latency-avg', value: sum_ms / n},
               {metric: 'record-e2e-latency-max', value: max_ms::DOUBLE}
           ], recursive := true),
           if(level = 'trace', 'stream-state-metrics', 'stream-processor-node-metrics') AS metric_group,
           topology, sub_topology, thread_id, task_id, operator AS node_id, upper(level) AS recording_level, n,
           finished_at AS "at"
    FROM tasks WHERE n IS NOT NULL
    UNION ALL BY NAME
    SELECT unnest([
               {metric: 'idempotent-update-skip-total', value: idempotent_update_skip_total::DOUBLE},
               {metric: 'idempotent-update-skip-rate', value: idempotent_update_skip_rate}
           ], recursive := true),
           'stream-processor-node-metrics' AS metric_group,
           topology, sub_topology, thread_id, task_id, operator AS node_id, 'DEBUG' AS recording_level,
           NULL::BIGINT AS n, decided_at AS "at"
    FROM tasks WHERE idempotent_update_skip_total IS NOT NULL)
    """,
)
"""The view; its SQL is for DuckDB only."""
