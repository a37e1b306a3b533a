-- topology, SLA and week (Monday to Sunday, UTC), with the number of checks in which the SLA held. Checks for the past and in maintenance
-- windows do not count
SELECT
    topology, sla, week, checks, held, judged - held AS broken, checks - judged AS unknown,
    CASE WHEN judged > 0 THEN CAST(held AS DOUBLE) / judged END AS attainment, owner
FROM (
    SELECT
        topology, sla, date_trunc('week', checked_at) AS week, count(*) AS checks,
        CAST(sum(CASE WHEN verdict = 'pass' THEN 1 ELSE 0 END) AS BIGINT) AS held,
        CAST(sum(CASE WHEN verdict <> 'unknown' THEN 1 ELSE 0 END) AS BIGINT) AS judged,
        max(owner) AS owner
    FROM sla_results
    WHERE excluded_because IS NULL
    GROUP BY topology, sla, date_trunc('week', checked_at)
) AS weeks
