-- record behind the watermark, of an aggregate with closed windows, or a strict join or source. The key is null where it is no text
SELECT topology, sub_topology, batch_id, operator, dead_letters.partition AS partition, dead_letters.offset AS offset,
       try_validate_utf8(string(dead_letters.key)) AS key, dead_letters.timestamp AS timestamp, watermark, lateness_ms, blocked_by,
       dead_letters.value AS value, task, headers
FROM dead_letters
WHERE kind = 'late'
