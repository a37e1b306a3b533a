-- table and interval that is complete. complete_at is when it first was; records and emitted count all batches, also later ones. reopenings
-- is the number of batches that got results after complete_at: the newest was at reopened_at, with the cause and its first record
SELECT topology, sub_topology, operator, completeness.table, interval_start, interval_end, min(decided_at) AS complete_at,
       CASE WHEN count(records) = count(*) THEN cast(sum(records) AS bigint) END AS records,
       CASE WHEN count(emitted) = count(*) THEN cast(sum(emitted) AS bigint) END AS emitted,
       max(waited_for) AS waited_for, max(waited_for_partition) AS waited_for_partition, max(waited_ms) AS waited_ms,
       bool_or(by_idleness) AS by_idleness, count(reopened_at) AS reopenings, max(reopened_at) AS reopened_at,
       max_by(cause, batch_id) AS cause, max_by(cause_partition, batch_id) AS cause_partition,
       max_by(cause_offset, batch_id) AS cause_offset, max(batch_id) AS batch_id
FROM completeness
GROUP BY topology, sub_topology, operator, completeness.table, interval_start, interval_end
