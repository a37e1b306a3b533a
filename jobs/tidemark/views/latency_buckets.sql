-- bucket of a row of latency_minutes: n records of that row have a latency in it
SELECT topology, sub_topology, batch_id, operator, kind, thread_id, task_id, finished_at, window_start, b.bucket, b.n
FROM (SELECT *, explode(buckets) AS b FROM latency_minutes) listed
