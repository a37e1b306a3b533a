-- source, or operator that keeps changes, with the newest record time that was read or emitted, the watermark, and how many ms each is
-- behind as_of, the reader's clock
SELECT topology, sub_topology, operator, newest_at, unix_millis(as_of) - unix_millis(newest_at) AS stale_ms,
       watermark, unix_millis(as_of) - unix_millis(watermark) AS watermark_behind_ms, activity, blocked_by,
       last_beat_at, driver_state, as_of
FROM (
    SELECT newest.topology, newest.sub_topology, newest.operator, newest.newest_at, mark.watermark, mark.activity,
           mark.blocked_by, beat.beat_at AS last_beat_at, beat.state AS driver_state, current_timestamp AS as_of
    FROM (
        SELECT topology, sub_topology, operator, cast(NULL AS string) AS source, max(timestamp) AS newest_at
        FROM changes
        GROUP BY topology, sub_topology, operator
        UNION ALL
        SELECT topology, sub_topology, source AS operator, source, max(newest_timestamp) AS newest_at
        FROM partition_batches
        WHERE source IS NOT NULL
        GROUP BY topology, sub_topology, source
    ) newest
    LEFT JOIN (
        SELECT topology, sub_topology, source, watermark, activity, blocked_by, row_number() OVER (
            PARTITION BY topology, sub_topology, source ORDER BY batch_id DESC, decided_at DESC
        ) AS place
        FROM partition_batches
        WHERE partition IS NULL
    ) mark
      ON mark.topology = newest.topology AND mark.sub_topology = newest.sub_topology AND mark.place = 1
     AND mark.source IS NOT DISTINCT FROM newest.source
    LEFT JOIN (
        SELECT topology, sub_topology, beat_at, state, row_number() OVER (
            PARTITION BY topology, sub_topology ORDER BY beat_at DESC, epoch DESC, batch_id DESC
        ) AS place
        FROM heartbeats
    ) beat
      ON beat.topology = newest.topology AND beat.sub_topology = newest.sub_topology AND beat.place = 1
) measured
