-- emitted update, with the meaning that its operator had then: 1 at first, and one more each time it began anew (`tidemark begin`).
-- begun_with is the first batch of that meaning; null: the operator had not begun anew
SELECT changes.topology, changes.sub_topology, changes.operator, changes.key, changes.value, changes.timestamp AS timestamp,
       changes.window_start, changes.window_end, changes.batch_id, changes.seq, coalesce(begun.meaning, 1) AS meaning,
       begun.batch_id AS begun_with
FROM changes
LEFT JOIN (
    SELECT topology, sub_topology, operator, batch_id, cast(1 + row_number() OVER each AS bigint) AS meaning,
           lead(batch_id) OVER each AS next_id
    FROM (SELECT DISTINCT topology, sub_topology, operator, batch_id FROM topology_changes) once
    WINDOW each AS (PARTITION BY topology, sub_topology, operator ORDER BY batch_id)
) begun
ON changes.topology = begun.topology AND changes.sub_topology = begun.sub_topology AND changes.operator = begun.operator
   AND changes.batch_id >= begun.batch_id AND (begun.next_id IS NULL OR changes.batch_id < begun.next_id)
