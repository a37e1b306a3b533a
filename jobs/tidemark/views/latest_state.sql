-- operator and key with a value. It has the last emitted update of the key. `last_seen_at` is the newest record time of the key,
-- including suppressed updates. Results of windows have their window in the key
SELECT newest_first.topology, newest_first.sub_topology, newest_first.operator, newest_first.key, value, timestamp,
       window_start, window_end, value_hash, batch_id, source_partition, source_offset,
       greatest(changed_until, coalesce(seen_until, changed_until)) AS last_seen_at
FROM (
    SELECT *, row_number() OVER (
        PARTITION BY topology, sub_topology, operator, key ORDER BY batch_id DESC, seq DESC
    ) AS place, max(timestamp) OVER (PARTITION BY topology, sub_topology, operator, key) AS changed_until
    FROM changes
) newest_first
LEFT JOIN (
    SELECT topology, sub_topology, operator, key, max(max_timestamp) AS seen_until
    FROM suppressed GROUP BY topology, sub_topology, operator, key
) seen
ON newest_first.topology = seen.topology AND newest_first.sub_topology = seen.sub_topology
   AND newest_first.operator = seen.operator AND newest_first.key = seen.key
WHERE place = 1 AND value IS NOT NULL
