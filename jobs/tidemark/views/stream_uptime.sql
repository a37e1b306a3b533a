-- driver: what launched it, the task that took over its supervision last, its topology file, its first and last heartbeat, and how it
-- ended: drained (by whom), rotated, finished, failed (with the reason), killed (its last heartbeat says that it runs, and another
-- followed; by which task, if recorded), or running (it has not ended)
SELECT topology, sub_topology, epoch, launched_by, host, file_digest, started_at, last_beat_at,
       CASE WHEN state IN ('starting', 'running') THEN CASE WHEN later IS NULL THEN 'running' ELSE 'killed' END
            ELSE state END AS ended,
       drained_by, reason, adopted_by, killed_by
FROM (
    SELECT topology, sub_topology, epoch, launched_by, host, file_digest, started_at, last_beat_at, state, drained_by, reason,
           adopted_by, lead(epoch) OVER (PARTITION BY topology, sub_topology ORDER BY epoch) AS later,
           lead(predecessor_killed_by) OVER (PARTITION BY topology, sub_topology ORDER BY epoch) AS killed_by
    FROM (
        SELECT topology, sub_topology, epoch, launched_by, host, file_digest, beat_at AS last_beat_at, state, drained_by,
               reason, adopted_by, predecessor_killed_by,
               min(beat_at) OVER (PARTITION BY topology, sub_topology, epoch) AS started_at, row_number() OVER (
                   PARTITION BY topology, sub_topology, epoch ORDER BY beat_at DESC, batch_id DESC
               ) AS from_last
        FROM heartbeats
    ) beat
    WHERE from_last = 1
) driver
