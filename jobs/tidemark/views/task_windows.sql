-- operator, streaming window that its watermark passed, and task (a shard, or an input partition of a source), with the task's end-window
-- time (EWT): ewt_at by its host's clock, ewt_adjusted_at by that of operator_windows. batch_id of a shard is the batch that closed the
-- window; of a partition it is the first batch in which the partition's own watermark passed the window. A partition that passed it later
-- than the operator has no row
SELECT windows.topology, windows.sub_topology, windows.operator, windows.kind, windows.window_start, windows.window_end,
       tasks.task.shard, tasks.task.partition, tasks.task.host, tasks.task.finished_at AS ewt_at,
       tasks.task.finished_at + (coalesce(tasks.task.skew_ms, 0) + coalesce(windows.skew_ms, 0)) * INTERVAL '0.001' SECOND
           AS ewt_adjusted_at,
       tasks.task.records, tasks.task.hot_key, tasks.task.hot_share, windows.batch_id
FROM operator_windows windows
JOIN (SELECT topology, sub_topology, batch_id, operator, explode(tasks) AS task FROM operator_batches) tasks
  ON tasks.topology = windows.topology AND tasks.sub_topology = windows.sub_topology
 AND tasks.batch_id = windows.batch_id AND tasks.operator = windows.operator
WHERE tasks.task.shard IS NOT NULL
UNION ALL
SELECT topology, sub_topology, operator, kind, window_start, window_end,
       cast(NULL AS int) AS shard, partition, host, ewt_at,
       ewt_at + (coalesce(task_skew_ms, 0) + coalesce(skew_ms, 0)) * INTERVAL '0.001' SECOND AS ewt_adjusted_at,
       records, cast(NULL AS string) AS hot_key, cast(NULL AS double) AS hot_share, passed_in AS batch_id
FROM (
    SELECT passed.topology, passed.sub_topology, passed.operator, passed.kind, passed.window_start, passed.window_end,
           passed.partition, coalesce(tasks.task.host, passed.host) AS host,
           coalesce(tasks.task.finished_at, CASE WHEN passed.passed_in = passed.closed_in THEN passed.ewt_at END,
                    CASE WHEN tasks.task.n IS NOT NULL THEN tasks.finished_at END, batches.finished_at) AS ewt_at,
           tasks.task.skew_ms AS task_skew_ms, passed.skew_ms,
           coalesce(tasks.task.records, tasks.task.n, 0) AS records, passed.passed_in
    FROM (
        -- The first batch whose watermark of the partition is that of the window's last millisecond, or later.
        SELECT *, min(marked_in) OVER (
                   PARTITION BY topology, sub_topology, operator, partition ORDER BY mark DESC) AS passed_in
        FROM (
            SELECT topology, sub_topology, source AS operator, partition, watermark AS mark, batch_id AS marked_in,
                   cast(NULL AS string) AS kind, cast(NULL AS timestamp) AS window_start,
                   cast(NULL AS timestamp) AS window_end, cast(NULL AS string) AS host, cast(NULL AS timestamp) AS ewt_at,
                   cast(NULL AS bigint) AS skew_ms, cast(NULL AS bigint) AS closed_in
            FROM partition_batches
            WHERE source IS NOT NULL AND partition IS NOT NULL AND watermark IS NOT NULL
            UNION ALL
            SELECT windows.topology, windows.sub_topology, windows.operator, partitions.partition,
                   windows.window_end - INTERVAL '0.001' SECOND AS mark, cast(NULL AS bigint) AS marked_in,
                   windows.kind, windows.window_start, windows.window_end, windows.host, windows.ewt_at,
                   windows.skew_ms, windows.batch_id AS closed_in
            FROM operator_windows windows
            JOIN (
                SELECT DISTINCT topology, sub_topology, source, partition
                FROM partition_batches
                WHERE source IS NOT NULL AND partition IS NOT NULL AND watermark IS NOT NULL
            ) partitions
              ON partitions.topology = windows.topology AND partitions.sub_topology = windows.sub_topology
             AND partitions.source = windows.operator
        ) marks
    ) passed
    LEFT JOIN (
        SELECT topology, sub_topology, batch_id, operator, finished_at, explode(tasks) AS task FROM operator_batches
    ) tasks
      ON tasks.topology = passed.topology AND tasks.sub_topology = passed.sub_topology
     AND tasks.batch_id = passed.passed_in AND tasks.operator = passed.operator
     AND tasks.task.partition = passed.partition
    LEFT JOIN batches
      ON batches.topology = passed.topology AND batches.sub_topology = passed.sub_topology
     AND batches.batch_id = passed.passed_in
    WHERE passed.window_end IS NOT NULL AND passed.passed_in <= passed.closed_in
) partition_ends
