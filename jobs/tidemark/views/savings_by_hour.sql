-- operator that suppresses unchanged updates, and hour (driver clock of the decision; null: unknown), with the number of updates, and of
-- suppressed ones
SELECT topology, sub_topology, operator, date_trunc('hour', decided_at) AS hour,
       cast(sum(emitted + suppressed) AS bigint) AS judged,
       cast(sum(emitted) AS bigint) AS emitted,
       cast(sum(suppressed) AS bigint) AS suppressed,
       sum(suppressed) / sum(emitted + suppressed) AS suppressed_share
FROM operator_batches
WHERE emitted + suppressed > 0
GROUP BY topology, sub_topology, operator, date_trunc('hour', decided_at)
