-- operator in shards, streaming window that its watermark passed, and task (a shard, or an input partition). It has the task's
-- end-window time (EWT): ewt_at by the clock of its host, and ewt_adjusted_at by the clock of that column in operator_windows
SELECT windows.topology, windows.sub_topology, windows.operator, windows.kind, windows.window_start, windows.window_end,
       tasks.shard, tasks.partition, tasks.host, tasks.finished_at AS ewt_at,
       tasks.finished_at + (coalesce(tasks.skew_ms, 0) + coalesce(windows.skew_ms, 0)) * INTERVAL '0.001' SECOND
           AS ewt_adjusted_at,
       tasks.records, tasks.hot_key, tasks.hot_share, windows.batch_id
FROM operator_windows windows
JOIN operator_tasks tasks
  ON tasks.topology = windows.topology AND tasks.sub_topology = windows.sub_topology
 AND tasks.batch_id = windows.batch_id AND tasks.operator = windows.operator
