-- operator and key that has a value: the update of it that was sent on last;
-- the results of windows have their window in the key
SELECT topology, sub_topology, operator, key, value, timestamp, window_start, window_end, value_hash,
       batch_id, source_partition, source_offset
FROM (
    SELECT *, row_number() OVER (
        PARTITION BY topology, sub_topology, operator, key ORDER BY batch_id DESC, seq DESC
    ) AS place
    FROM changes
) newest_first
WHERE place = 1 AND value IS NOT NULL
