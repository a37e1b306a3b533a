-- topology, window, hour, day or SLA breach, and part of the age of windows over their SLA that was too long. Rank 1 grew most
-- beyond its usual length
WITH excess AS (
    SELECT
        topology, window_start, window_end, subject, operator, kind, input, ms, age_ms, finished_at, usual_ms, usual_share,
        compared, judged_ms, expected_ms, excess_ms, no_history, broken_slas
    FROM window_parts
    WHERE over_sla AND excess_ms > 0
),
-- A window may have broken the promises of several operators: each part counts once, for whom it was too long by most.
by_subject AS (
    SELECT
        *,
        row_number() OVER (
            PARTITION BY topology, window_start, window_end, operator, kind ORDER BY excess_ms DESC, subject ASC
        ) AS nth
    FROM excess
),
of_windows AS (
    SELECT
        topology, window_start, window_end, operator, kind, input, finished_at, compared, judged_ms, expected_ms, excess_ms,
        ms, age_ms, usual_ms, usual_share, no_history
    FROM by_subject
    WHERE nth = 1
),
breaches AS (
    SELECT DISTINCT
        topology, sla, coalesce(objective, sla) AS promise, subject, checked_at - over_ms * INTERVAL '0.001' SECOND AS interval_start,
        checked_at AS interval_end
    FROM sla_results
    WHERE verdict IN ('warn', 'error') AND over_ms IS NOT NULL
),
held AS (
    SELECT
        w.*, 'window' AS grain, window_start AS interval_start, window_end AS interval_end, CAST(NULL AS STRING) AS sla
    FROM of_windows AS w
    UNION ALL
    SELECT
        w.*, 'hour', date_trunc('hour', window_end), date_trunc('hour', window_end) + INTERVAL '1' HOUR, NULL
    FROM of_windows AS w
    UNION ALL
    SELECT
        w.*, 'day', date_trunc('day', window_end), date_trunc('day', window_end) + INTERVAL '24' HOUR, NULL
    FROM of_windows AS w
    UNION ALL
    SELECT
        e.topology, e.window_start, e.window_end, e.operator, e.kind, e.input, e.finished_at, e.compared, e.judged_ms,
        e.expected_ms, e.excess_ms, e.ms, e.age_ms, e.usual_ms, e.usual_share, e.no_history, 'breach', b.interval_start, b.interval_end, b.sla
    FROM excess AS e
    INNER JOIN breaches AS b
        ON e.topology = b.topology AND e.subject = b.subject AND array_contains(e.broken_slas, b.promise)
        AND e.finished_at >= b.interval_start AND e.finished_at < b.interval_end
),
blamed AS (
    SELECT
        topology, grain, interval_start, interval_end, sla, operator, kind,
        max(input) AS input,
        max(finished_at) AS finished_at,
        -- Null where windows differ in what was compared.
        CASE WHEN min(compared) = max(compared) THEN min(compared) END AS compared,
        sum(judged_ms) AS judged_ms,
        sum(expected_ms) AS expected_ms,
        sum(excess_ms) AS excess_ms,
        CAST(sum(ms) AS BIGINT) AS used_ms,
        max(usual_ms) AS usual_ms,
        CASE WHEN sum(age_ms) > 0 THEN CAST(sum(ms) AS DOUBLE) / sum(age_ms) END AS share,
        max(usual_share) AS usual_share,
        bool_or(no_history) AS no_history,
        count(*) AS windows
    FROM held
    GROUP BY topology, grain, interval_start, interval_end, sla, operator, kind
)
SELECT
    topology, grain, interval_start, interval_end, finished_at, sla, operator, kind, input, compared, judged_ms,
    expected_ms, excess_ms, used_ms, usual_ms, share, usual_share, no_history, windows,
    CAST(row_number() OVER (
        PARTITION BY topology, grain, interval_start, interval_end, sla ORDER BY excess_ms DESC, operator ASC, kind ASC
    ) AS BIGINT) AS rank
FROM blamed
