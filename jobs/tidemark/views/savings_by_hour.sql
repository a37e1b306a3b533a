-- operator that suppresses unchanged updates, and hour (driver clock of the decision). It has the number of updates, and of
-- suppressed ones. The hour is null if it is unknown
SELECT counts.topology, counts.sub_topology, counts.operator, date_trunc('hour', times.decided_at) AS hour,
       cast(sum(counts.emitted + counts.suppressed) AS bigint) AS judged,
       cast(sum(counts.emitted) AS bigint) AS emitted,
       cast(sum(counts.suppressed) AS bigint) AS suppressed,
       sum(counts.suppressed) / sum(counts.emitted + counts.suppressed) AS suppressed_share
FROM outcomes counts
LEFT JOIN batches times
  ON times.topology = counts.topology AND times.sub_topology = counts.sub_topology AND times.batch_id = counts.batch_id
WHERE counts.emitted + counts.suppressed > 0
GROUP BY counts.topology, counts.sub_topology, counts.operator, date_trunc('hour', times.decided_at)
