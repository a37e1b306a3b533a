-- SLA and period in which every check had the same verdict, from the first to the last of these checks
SELECT topology, sla, subject, measure, verdict, min(checked_at) AS since, max(checked_at) AS until,
       count(*) AS checks, max(observed_ms) AS worst_observed_ms, max(warn_after_ms) AS warn_after_ms,
       max(error_after_ms) AS error_after_ms, max(owner) AS owner
FROM (
    SELECT *, row_number() OVER (PARTITION BY topology, sla ORDER BY checked_at, run_id)
            - row_number() OVER (PARTITION BY topology, sla, verdict ORDER BY checked_at, run_id) AS stretch
    FROM sla_results
) numbered
GROUP BY topology, sla, subject, measure, verdict, stretch
