-- incident: when the SLA broke and the incident was opened, acknowledged and resolved, and verdict and text of its worst change;
-- `culprit` and `blocked_by` by the newest check that found it broken. State by the newest check while it was open: `verdict`;
-- `passes_since`, since which the SLA holds; `resolves_at`, if it goes on holding; `worst_observed` in `unit`; and
-- `broke_again`, how often the SLA broke again after it had held
WITH worst AS (
    SELECT topology, incident, verdict, culprit, blocked_by, message
    FROM (
        SELECT
            i.topology, i.incident, i.verdict, i.culprit, i.blocked_by, i.message,
            row_number() OVER (PARTITION BY i.topology, i.incident ORDER BY i.changed_at DESC, i.change ASC) AS place
        FROM incidents AS i
        WHERE i.change IN ('opened', 'escalated')
    ) AS placed
    WHERE place = 1
),
lasted AS (
    SELECT
        i.topology, i.incident, i.sla,
        max(i.severity) AS severity,
        max(i.subject) AS subject,
        max(i.measure) AS measure,
        max(i.owner) AS owner,
        max(i.unit) AS unit,
        min(i.broken_since) AS broken_since,
        min(i.crossed_at) AS crossed_at,
        min(i.opened_at) AS opened_at,
        max(CASE WHEN i.change = 'escalated' THEN i.changed_at END) AS escalated_at,
        max(CASE WHEN i.change = 'acknowledged' THEN i.changed_at END) AS acknowledged_at,
        max(CASE WHEN i.change = 'acknowledged' THEN i.decided_by END) AS acknowledged_by,
        max(CASE WHEN i.change = 'resolved' THEN i.changed_at END) AS resolved_at
    FROM incidents AS i
    GROUP BY i.topology, i.incident, i.sla
),
seen AS (
    SELECT
        l.topology, l.incident, r.checked_at, r.run_id, r.verdict, r.excluded_because, r.resolve_after_ms, r.culprit, r.blocked_by,
        r.excluded_because IS NULL AND r.verdict NOT IN ('pass', 'unknown') AS is_broken,
        -- Each measure has one of these, and those of a share or a rate count records, too.
        coalesce(r.observed_ms, r.share, r.burn_rate, r.records) AS observed,
        r.measure = 'records' AS is_worse_below
    FROM lasted AS l
    INNER JOIN sla_results AS r
        ON l.topology = r.topology AND l.sla = r.sla AND r.checked_at >= l.opened_at
        AND (l.resolved_at IS NULL OR r.checked_at <= l.resolved_at)
    WHERE coalesce(r.excluded_because, 'none') NOT IN ('calendar', 'past')
),
followed AS (
    SELECT
        *,
        lag(is_broken) OVER (
            PARTITION BY topology, incident, excluded_because IS NULL AND verdict <> 'unknown' ORDER BY checked_at
        ) AS was_broken,
        is_broken AND 1 = row_number() OVER (
            PARTITION BY topology, incident, is_broken ORDER BY checked_at DESC, run_id DESC
        ) AS is_newest_broken,
        max(CASE WHEN is_broken OR excluded_because IS NOT NULL THEN checked_at END) OVER (
            PARTITION BY topology, incident
        ) AS stopped_at
    FROM seen
),
standing AS (
    SELECT
        topology, incident,
        max_by(verdict, checked_at) AS verdict,
        max(checked_at) AS checked_at,
        max_by(resolve_after_ms, checked_at) AS resolve_after_ms,
        max(is_newest_broken) AS was_found_broken,
        max(CASE WHEN is_newest_broken THEN culprit END) AS culprit,
        max(CASE WHEN is_newest_broken THEN blocked_by END) AS blocked_by,
        min(CASE WHEN verdict = 'pass' AND checked_at > stopped_at THEN checked_at END) AS passes_since,
        CASE WHEN max(is_worse_below) THEN min(CASE WHEN is_broken THEN observed END)
             ELSE max(CASE WHEN is_broken THEN observed END) END AS worst_observed,
        sum(CASE WHEN is_broken AND NOT was_broken THEN 1 ELSE 0 END) AS broke_again
    FROM followed
    GROUP BY topology, incident
)
SELECT
    l.topology, l.incident, l.sla, l.severity, l.subject, l.measure, l.owner,
    CASE WHEN l.resolved_at IS NOT NULL THEN 'resolved' WHEN l.acknowledged_at IS NOT NULL THEN 'acknowledged'
         ELSE 'open' END AS state,
    l.broken_since, l.crossed_at, l.opened_at, l.escalated_at, l.acknowledged_at, l.acknowledged_by, l.resolved_at,
    w.verdict AS worst_verdict,
    -- An incident about a check that was missed has no check.
    CASE WHEN s.was_found_broken THEN s.culprit ELSE w.culprit END AS culprit,
    CASE WHEN s.was_found_broken THEN s.blocked_by ELSE w.blocked_by END AS blocked_by,
    w.message, s.verdict, s.checked_at, s.passes_since,
    CASE WHEN l.resolved_at IS NULL THEN timestamp_millis(unix_millis(s.passes_since) + s.resolve_after_ms) END AS resolves_at,
    s.worst_observed, l.unit, CAST(s.broke_again AS BIGINT) AS broke_again
FROM lasted AS l
LEFT JOIN worst AS w ON l.topology = w.topology AND l.incident = w.incident
LEFT JOIN standing AS s ON l.topology = s.topology AND l.incident = s.incident
