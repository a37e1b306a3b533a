-- value of a key, which was valid from valid_from (inclusive) to valid_to (exclusive; null: it still is), record time. Of several updates
-- with the same instant only the last was valid; the others end where they start. A suppressed update has a row only if the value had
-- changed before it, by record time: a sent A of 12:00, a sent B of 12:05 and a suppressed A of 12:09 give three rows. Of a run of
-- suppressed updates the newest counts
SELECT topology, sub_topology, operator, key, value, valid_from, valid_to, window_start, window_end, batch_id, seq
FROM (
    SELECT topology, sub_topology, operator, key, value, valid_from, window_start, window_end, batch_id, seq,
           lead(valid_from) OVER (
               PARTITION BY topology, sub_topology, operator, key ORDER BY valid_from, batch_id, seq
           ) AS valid_to
    FROM (
        SELECT topology, sub_topology, operator, key, value, valid_from, window_start, window_end, batch_id, seq,
               value_hash, is_sent,
               lag(value_hash) OVER (
                   PARTITION BY topology, sub_topology, operator, key ORDER BY valid_from, batch_id, seq
               ) AS hash_before
        FROM (
            SELECT topology, sub_topology, operator, key, value, timestamp AS valid_from, window_start, window_end,
                   batch_id, seq, value_hash, true AS is_sent
            FROM changes
            UNION ALL
            SELECT again.topology, again.sub_topology, again.operator, again.key, known.value,
                   again.max_timestamp AS valid_from, known.window_start, known.window_end, again.batch_id,
                   4611686018427387904 AS seq, again.value_hash, false AS is_sent
            FROM suppressed again
            JOIN (
                SELECT DISTINCT topology, sub_topology, operator, key, value, value_hash, window_start, window_end
                FROM changes WHERE value IS NOT NULL
            ) known
            ON again.topology = known.topology AND again.sub_topology = known.sub_topology
               AND again.operator = known.operator AND again.key = known.key AND again.value_hash = known.value_hash
        ) asserted
    ) in_order
    WHERE is_sent OR hash_before IS NULL OR hash_before <> value_hash
) told
WHERE value IS NOT NULL
