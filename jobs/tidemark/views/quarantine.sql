-- invalid record, with the reason. `source` is the operator that rejected it: a source, an operator that got a null key, or a sink whose
-- topic or schema rejects it
SELECT topology, sub_topology, batch_id, operator AS source, topic, dead_letters.partition AS partition,
       dead_letters.offset AS offset, reason, detail, dead_letters.key AS key, dead_letters.value AS value
FROM dead_letters
WHERE kind = 'quarantined'
