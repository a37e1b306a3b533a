-- stream, day (UTC) and cause of restarts: drivers that another one followed. The cause says how the driver ended, as in stream_uptime, and
-- who drained it, why a task killed it (such as stale), or the kind of error with which it failed (such as DataLost), without ids. down_ms
-- is the time from its last heartbeat to the next driver's first
SELECT topology, sub_topology, date_trunc('day', last_beat_at) AS day, ended, cause, count(*) AS restarts,
       cast(sum(unix_millis(next_at) - unix_millis(last_beat_at)) AS bigint) AS down_ms
FROM (
    SELECT topology, sub_topology, last_beat_at, ended,
           CASE ended
               WHEN 'drained' THEN drained_by
               WHEN 'killed' THEN split_part(killed_by, ': ', -1)
               ELSE split_part(reason, ': ', 1)
           END AS cause,
           lead(started_at) OVER (PARTITION BY topology, sub_topology ORDER BY epoch) AS next_at
    FROM stream_uptime
) driver
WHERE next_at IS NOT NULL
GROUP BY topology, sub_topology, date_trunc('day', last_beat_at), ended, cause
