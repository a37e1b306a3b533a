-- incident: when its SLA broke, when it was opened, acknowledged and resolved, and what was told last; open ones have no resolved_at
SELECT
    topology, incident, sla,
    max(severity) AS severity,
    max(subject) AS subject,
    max(measure) AS measure,
    max(owner) AS owner,
    CASE WHEN max(CASE WHEN change = 'resolved' THEN 1 ELSE 0 END) = 1 THEN 'resolved'
         WHEN max(CASE WHEN change = 'acknowledged' THEN 1 ELSE 0 END) = 1 THEN 'acknowledged'
         ELSE 'open' END AS state,
    min(broken_since) AS broken_since,
    min(opened_at) AS opened_at,
    max(CASE WHEN change = 'escalated' THEN i.at END) AS escalated_at,
    max(CASE WHEN change = 'acknowledged' THEN i.at END) AS acknowledged_at,
    max(CASE WHEN change = 'acknowledged' THEN i.by END) AS acknowledged_by,
    max(CASE WHEN change = 'resolved' THEN i.at END) AS resolved_at,
    max_by(verdict, CASE WHEN change IN ('opened', 'escalated') THEN i.at END) AS worst_verdict,
    max_by(culprit, CASE WHEN change IN ('opened', 'escalated') THEN i.at END) AS culprit,
    max_by(held_by, CASE WHEN change IN ('opened', 'escalated') THEN i.at END) AS held_by,
    max_by(said, CASE WHEN change IN ('opened', 'escalated') THEN i.at END) AS said
FROM incidents AS i
GROUP BY topology, incident, sla
