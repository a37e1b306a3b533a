-- value of a key, and the record time for which it was valid: from valid_from, inclusive, to valid_to, exclusive;
-- valid_to null: it still is; of updates at one instant the last one sent on is valid, the others for no time
SELECT topology, sub_topology, operator, key, value, valid_from, valid_to, window_start, window_end, batch_id, seq
FROM (
    SELECT topology, sub_topology, operator, key, value, timestamp AS valid_from,
           lead(timestamp) OVER (
               PARTITION BY topology, sub_topology, operator, key ORDER BY timestamp, batch_id, seq
           ) AS valid_to,
           window_start, window_end, batch_id, seq
    FROM changes
) in_order
WHERE value IS NOT NULL
