-- topology, hour of the windows' end (record time) and leaf, with the critical paths that ended at the leaf, ms, and the operator with the
-- largest share. p50_ms and p90_ms are their nearest-rank percentiles. over_sla_windows null: no SLA
SELECT paths.topology, paths.hour, paths.leaf, paths.windows, paths.avg_ms, paths.p50_ms, paths.p90_ms, paths.max_ms,
       paths.queued_ms, paths.waited_ms, paths.over_sla_windows, slowest.operator AS slowest_operator, slowest.share AS slowest_share
FROM (
    SELECT topology, date_trunc('hour', window_end) AS hour, leaf, count(*) AS windows, avg(latency_ms) AS avg_ms,
           max(CASE WHEN place <= ceil(0.5 * n) THEN latency_ms END) AS p50_ms,
           max(CASE WHEN place <= ceil(0.9 * n) THEN latency_ms END) AS p90_ms,
           max(latency_ms) AS max_ms, cast(sum(queued_ms) AS bigint) AS queued_ms,
           cast(sum(waited_ms) AS bigint) AS waited_ms,
           cast(sum(CASE WHEN over_sla THEN 1 WHEN NOT over_sla THEN 0 END) AS bigint) AS over_sla_windows
    FROM (
        SELECT *, row_number() OVER by_length AS place, count(*) OVER of_hour AS n
        FROM critical_paths
        WHERE leaf IS NOT NULL
        WINDOW of_hour AS (PARTITION BY topology, date_trunc('hour', window_end), leaf),
               by_length AS (PARTITION BY topology, date_trunc('hour', window_end), leaf ORDER BY latency_ms)
    ) numbered
    GROUP BY topology, date_trunc('hour', window_end), leaf
) paths
LEFT JOIN (
    SELECT topology, hour, leaf, operator, latency_ms / nullif(sum(latency_ms) OVER of_leaf, 0) AS share,
           row_number() OVER (PARTITION BY topology, hour, leaf ORDER BY latency_ms DESC, operator) AS place
    FROM (
        SELECT steps.topology, date_trunc('hour', steps.window_end) AS hour, windows.leaf, steps.operator,
               cast(sum(steps.latency_ms) AS bigint) AS latency_ms
        FROM critical_path_steps steps
        JOIN critical_paths windows
          ON windows.topology = steps.topology AND windows.window_start = steps.window_start
         AND windows.window_end = steps.window_end
        WHERE steps.step IS NOT NULL
        GROUP BY steps.topology, date_trunc('hour', steps.window_end), windows.leaf, steps.operator
    ) operators
    WINDOW of_leaf AS (PARTITION BY topology, hour, leaf)
) slowest
  ON slowest.topology = paths.topology AND slowest.hour = paths.hour AND slowest.leaf = paths.leaf AND slowest.place = 1
