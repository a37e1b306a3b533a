-- record that a sink's table refused, or that its topic rejected after the batch was decided, for example because a limit of
-- the topic changed meanwhile; with the error
SELECT topology, sub_topology, batch_id, operator, topic, dead_letters.key AS key, dead_letters.value AS value,
       dead_letters.timestamp AS timestamp, dead_letters.partition AS source_partition,
       dead_letters.offset AS source_offset, detail AS error
FROM dead_letters
WHERE kind = 'undeliverable'
