-- topology, SLA with an error budget, and check: how fast the budget was used over the time before it, and what is left of it
SELECT topology, sla, subject, checked_at, over_ms, burn_rate, budget_left, verdict
FROM sla_results
WHERE measure = 'burn_rate' AND quiet IS NULL
