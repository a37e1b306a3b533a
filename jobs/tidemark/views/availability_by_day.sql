-- stream and day (UTC) with heartbeats. A driver is up from a heartbeat in the state running to the next heartbeat of the stream,
-- for at most a minute. available_share is the part of the day that it was up, from the stream's first heartbeat to its last. drains,
-- rotations, failures and kills count the drivers whose last heartbeat is of that day
SELECT up.topology, up.sub_topology, up.day, up.up_ms,
       CASE WHEN up.until_ms > up.from_ms THEN least(cast(1 AS double), up.up_ms / (up.until_ms - up.from_ms)) END AS available_share,
       coalesce(ends.drains, 0) AS drains, coalesce(ends.rotations, 0) AS rotations, coalesce(ends.failures, 0) AS failures,
       coalesce(ends.kills, 0) AS kills
FROM (
    SELECT topology, sub_topology, day,
           cast(sum(CASE WHEN state = 'running' THEN least(60000, greatest(0, coalesce(next_ms, at_ms) - at_ms)) ELSE 0 END)
                AS bigint) AS up_ms,
           greatest(min(first_ms), unix_millis(day)) AS from_ms, least(min(last_ms), unix_millis(day) + 86400000) AS until_ms
    FROM (
        SELECT topology, sub_topology, state, date_trunc('day', beat_at) AS day, unix_millis(beat_at) AS at_ms,
               lead(unix_millis(beat_at)) OVER (
                   PARTITION BY topology, sub_topology ORDER BY beat_at, epoch
               ) AS next_ms,
               min(unix_millis(beat_at)) OVER (PARTITION BY topology, sub_topology) AS first_ms,
               max(unix_millis(beat_at)) OVER (PARTITION BY topology, sub_topology) AS last_ms
        FROM heartbeats
    ) beat
    GROUP BY topology, sub_topology, day
) up
LEFT JOIN (
    SELECT topology, sub_topology, date_trunc('day', last_beat_at) AS day,
           cast(sum(CASE WHEN ended = 'drained' THEN 1 ELSE 0 END) AS bigint) AS drains,
           cast(sum(CASE WHEN ended = 'rotated' THEN 1 ELSE 0 END) AS bigint) AS rotations,
           cast(sum(CASE WHEN ended = 'failed' THEN 1 ELSE 0 END) AS bigint) AS failures,
           cast(sum(CASE WHEN ended = 'killed' THEN 1 ELSE 0 END) AS bigint) AS kills
    FROM stream_uptime
    GROUP BY topology, sub_topology, date_trunc('day', last_beat_at)
) ends
  ON ends.topology = up.topology AND ends.sub_topology = up.sub_topology AND ends.day = up.day
