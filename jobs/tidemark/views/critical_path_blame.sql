-- topology, window, hour, day or SLA breach, and who used time on critical paths of windows over their SLA: 1 is who used most beyond the usual
WITH paths AS (
    SELECT
        topology, window_start, window_end, over_sla, before_source_ms,
        window_end + (before_source_ms + latency_ms) * INTERVAL '0.001' SECOND AS finished_at,
        waited_ms + queued_ms AS waiting_ms,
        before_source_ms + latency_ms AS total_ms,
        coalesce(before_source_ms + latency_ms > sla_ms, FALSE) AS leaf_is_over
    FROM critical_paths
    WHERE over_sla IS NOT NULL
),
-- What each window's time was used for. A window that is only over the promise of an operator is that operator's fault.
used AS (
    SELECT
        p.topology, p.window_start, p.window_end, p.finished_at, p.over_sla, p.total_ms, s.operator, s.kind,
        s.worked_ms AS ms, s.promised_ms,
        s.step IS NOT NULL AS on_path,
        p.leaf_is_over OR coalesce(s.worked_ms > s.promised_ms, FALSE) AS is_candidate
    FROM paths AS p
    INNER JOIN critical_path_steps AS s
        ON p.topology = s.topology AND p.window_start = s.window_start AND p.window_end = s.window_end
    UNION ALL
    SELECT
        topology, window_start, window_end, finished_at, over_sla, total_ms, 'before_source', 'before_source',
        before_source_ms, CAST(NULL AS BIGINT), TRUE, leaf_is_over
    FROM paths
    UNION ALL
    SELECT
        topology, window_start, window_end, finished_at, over_sla, total_ms, 'waiting', 'waiting',
        waiting_ms, CAST(NULL AS BIGINT), TRUE, leaf_is_over
    FROM paths
),
usual AS (
    SELECT
        topology, operator, kind,
        median(ms) AS usual_ms,
        median(CASE WHEN on_path AND total_ms > 0 THEN CAST(ms AS DOUBLE) / total_ms END) AS usual_share
    FROM used
    WHERE NOT over_sla
    GROUP BY topology, operator, kind
),
excess AS (
    SELECT
        u.topology, u.window_start, u.window_end, u.finished_at, u.operator, u.kind, u.ms, u.total_ms, n.usual_ms,
        n.usual_share,
        u.ms - CAST(coalesce(greatest(n.usual_ms, u.promised_ms), 0) AS DOUBLE) AS excess_ms
    FROM used AS u
    LEFT JOIN usual AS n ON u.topology = n.topology AND u.operator = n.operator AND u.kind = n.kind
    WHERE u.over_sla AND u.on_path AND u.is_candidate
),
breaches AS (
    SELECT DISTINCT
        topology, sla, checked_at - over_ms * INTERVAL '0.001' SECOND AS interval_start, checked_at AS interval_end
    FROM sla_results
    WHERE verdict IN ('warn', 'error') AND over_ms IS NOT NULL
),
held AS (
    SELECT
        e.*, 'window' AS grain, window_start AS interval_start, window_end AS interval_end, CAST(NULL AS STRING) AS sla
    FROM excess AS e
    UNION ALL
    SELECT
        e.*, 'hour', date_trunc('hour', window_end), date_trunc('hour', window_end) + INTERVAL '1' HOUR, NULL
    FROM excess AS e
    UNION ALL
    SELECT
        e.*, 'day', date_trunc('day', window_end), date_trunc('day', window_end) + INTERVAL '24' HOUR, NULL
    FROM excess AS e
    UNION ALL
    SELECT e.*, 'breach', b.interval_start, b.interval_end, b.sla
    FROM excess AS e
    INNER JOIN breaches AS b
        ON e.topology = b.topology AND e.finished_at >= b.interval_start AND e.finished_at < b.interval_end
),
blamed AS (
    SELECT
        topology, grain, interval_start, interval_end, sla, operator, kind,
        max(finished_at) AS finished_at,
        sum(excess_ms) AS excess_ms,
        CAST(sum(ms) AS BIGINT) AS used_ms,
        max(usual_ms) AS usual_ms,
        CASE WHEN sum(total_ms) > 0 THEN CAST(sum(ms) AS DOUBLE) / sum(total_ms) END AS share,
        max(usual_share) AS usual_share,
        count(*) AS windows
    FROM held
    WHERE excess_ms > 0
    GROUP BY topology, grain, interval_start, interval_end, sla, operator, kind
)
SELECT
    topology, grain, interval_start, interval_end, finished_at, sla, operator, kind, excess_ms, used_ms, usual_ms, share,
    usual_share, windows,
    CAST(row_number() OVER (
        PARTITION BY topology, grain, interval_start, interval_end, sla ORDER BY excess_ms DESC, operator ASC, kind ASC
    ) AS BIGINT) AS rank
FROM blamed
