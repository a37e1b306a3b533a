-- change of a field of a topic, with the newest time at which a sampled record had the field
SELECT topology, sub_topology, schema_changes.source, topic, field, change, found_at, max_by(type, batch_id) AS type,
       max_by(was_type, batch_id) AS was_type, max_by(declared, batch_id) AS declared, min(first_seen_at) AS first_seen_at,
       max(last_seen_at) AS last_seen_at, max(batch_id) AS batch_id
FROM schema_changes
GROUP BY topology, sub_topology, schema_changes.source, topic, field, change, found_at
