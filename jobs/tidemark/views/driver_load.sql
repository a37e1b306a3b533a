-- driver, from its newest heartbeat: CPU (1: one core), memory, waiting records, the last batch, disk space, and when a driver that is
-- behind will have read everything
SELECT topology, sub_topology, beat_at, state, epoch, batch_id, cpu_share, memory_bytes, memory_free_bytes,
       memory_bytes / (memory_bytes + memory_free_bytes) AS memory_share, records_waiting, last_batch_ms,
       checkpoint_bytes, state_bytes, records_behind, arrival_per_s, working_per_s, eta_at
FROM (
    SELECT topology, sub_topology, beat_at, state, epoch, batch_id, cpu_share, memory_bytes,
           memory_free_bytes, records_waiting, last_batch_ms, checkpoint_bytes, state_bytes, records_behind,
           arrival_per_s, working_per_s, eta_at, row_number() OVER (
               PARTITION BY topology, sub_topology ORDER BY beat_at DESC, epoch DESC, batch_id DESC
           ) AS place
    FROM heartbeats
) beat
WHERE place = 1
