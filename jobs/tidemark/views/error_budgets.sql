-- objective and check. Of the objective's window before the check it has the number of records, of slow ones, and of slow ones that the
-- budget allows, and the unused share of the budget (< 0: exceeded; null: too few records). burn_rate_1h, burn_rate_6h and burn_rate_3d are
-- the rates of use over these times
SELECT
    topology, objective, subject, owner, checked_at, target, threshold_ms, window_ms, window_records AS records,
    window_slow AS slow_records, window_records * (1 - target) AS allowed_records, budget_left,
    max(CASE WHEN over_ms = 3600000 THEN burn_rate END) AS burn_rate_1h,
    max(CASE WHEN over_ms = 21600000 THEN burn_rate END) AS burn_rate_6h,
    max(CASE WHEN over_ms = 259200000 THEN burn_rate END) AS burn_rate_3d
FROM sla_results
WHERE objective IS NOT NULL AND coalesce(excluded_because, 'none') NOT IN ('calendar', 'past')
GROUP BY topology, objective, subject, owner, checked_at, run_id, target, threshold_ms, window_ms, window_records, window_slow,
         budget_left
