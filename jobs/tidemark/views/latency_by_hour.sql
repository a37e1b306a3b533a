-- operator and hour of the finish clock, with the end-to-end latency of the records that the operator finished, ms
SELECT topology, sub_topology, operator, kind, interval_start AS hour, n, negative_n,
       min_ms, avg_ms, p50_ms, p90_ms, p99_ms, p999_ms, max_ms, sla_ms, over_sla_n, over_sla_share
FROM latency_rollup
WHERE scope = 'operator' AND grain = 'hour'
