-- incident. It has the instants at which the SLA broke and the incident was opened, acknowledged and resolved, and verdict,
-- culprit and text of its worst change
WITH worst AS (
    SELECT topology, incident, verdict, culprit, held_by, said
    FROM (
        SELECT
            i.topology, i.incident, i.verdict, i.culprit, i.held_by, i.said,
            row_number() OVER (PARTITION BY i.topology, i.incident ORDER BY i.at DESC, i.change ASC) AS place
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
        min(i.broken_since) AS broken_since,
        min(i.opened_at) AS opened_at,
        max(CASE WHEN i.change = 'escalated' THEN i.at END) AS escalated_at,
        max(CASE WHEN i.change = 'acknowledged' THEN i.at END) AS acknowledged_at,
        max(CASE WHEN i.change = 'acknowledged' THEN i.by END) AS acknowledged_by,
        max(CASE WHEN i.change = 'resolved' THEN i.at END) AS resolved_at
    FROM incidents AS i
    GROUP BY i.topology, i.incident, i.sla
)
SELECT
    l.topology, l.incident, l.sla, l.severity, l.subject, l.measure, l.owner,
    CASE WHEN l.resolved_at IS NOT NULL THEN 'resolved' WHEN l.acknowledged_at IS NOT NULL THEN 'acknowledged'
         ELSE 'open' END AS state,
    l.broken_since, l.opened_at, l.escalated_at, l.acknowledged_at, l.acknowledged_by, l.resolved_at,
    w.verdict AS worst_verdict, w.culprit, w.held_by, w.said
FROM lasted AS l
LEFT JOIN worst AS w ON l.topology = w.topology AND l.incident = w.incident
