-- topology, SLA with an error budget, and check. `burn_rate` is the use of the budget in the time before the check (1: used up exactly),
-- and `budget_left` the unused share of it (of an objective: of its whole window)
SELECT topology, sla, subject, checked_at, over_ms, burn_rate, budget_left, verdict
FROM sla_results
WHERE measure = 'burn_rate' AND excluded_because IS NULL
