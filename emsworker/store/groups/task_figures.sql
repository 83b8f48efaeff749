-- name: upsert_figures
INSERT INTO ems_task_figure (slot_at, group_id, task, runs, failed, retried, dead, cpu_us, cpu_runs, last_error, error_at) VALUES

-- name: figure_row
(NOW() - INTERVAL UNIX_TIMESTAMP() MOD 600 SECOND,%(group_id)s,%(task)s,%(runs)s,%(failed)s,%(retried)s,%(dead)s,%(cpu_us)s,%(cpu_runs)s,%(error)s,IF(%(error)s IS NULL,NULL,NOW(6)))

-- name: upsert_figures_end
ON DUPLICATE KEY UPDATE runs = runs + VALUES(runs), failed = failed + VALUES(failed), retried = retried + VALUES(retried), dead = dead + VALUES(dead),
  cpu_us = cpu_us + VALUES(cpu_us), cpu_runs = cpu_runs + VALUES(cpu_runs), last_error = COALESCE(VALUES(last_error), last_error),
  error_at = COALESCE(VALUES(error_at), error_at)

-- name: upsert_buckets
INSERT INTO ems_task_bucket (slot_at, group_id, task, bucket, waits, runs) VALUES

-- name: bucket_row
(NOW() - INTERVAL UNIX_TIMESTAMP() MOD 600 SECOND,%(group_id)s,%(task)s,%(bucket)s,%(waits)s,%(runs)s)

-- name: upsert_buckets_end
ON DUPLICATE KEY UPDATE waits = waits + VALUES(waits), runs = runs + VALUES(runs)

-- name: list_figures
-- A range of the primary key, which is as long as there are tasks that ran in that time.
SELECT group_id, task, SUM(runs), SUM(failed), SUM(retried), SUM(dead), SUM(cpu_us), SUM(cpu_runs), MAX(error_at) FROM ems_task_figure
WHERE slot_at > NOW() - INTERVAL %(within_s)s SECOND AND group_id IN %(group_ids)s GROUP BY group_id, task

-- name: list_errors
-- In the order in which they happened: of each task the last row counts.
SELECT group_id, task, last_error FROM ems_task_figure
WHERE slot_at > NOW() - INTERVAL %(within_s)s SECOND AND group_id IN %(group_ids)s AND last_error IS NOT NULL ORDER BY error_at

-- name: list_buckets
SELECT group_id, task, bucket, SUM(waits), SUM(runs) FROM ems_task_bucket
WHERE slot_at > NOW() - INTERVAL %(within_s)s SECOND AND group_id IN %(group_ids)s GROUP BY group_id, task, bucket

-- name: list_names
-- The tasks with which workers have started.
SELECT group_id, name FROM ems_handler WHERE group_id IN %(group_ids)s

-- name: delete_old_figures
DELETE FROM ems_task_figure WHERE slot_at < NOW() - INTERVAL 1 DAY ORDER BY slot_at LIMIT %(limit)s

-- name: delete_old_buckets
DELETE FROM ems_task_bucket WHERE slot_at < NOW() - INTERVAL 1 DAY ORDER BY slot_at LIMIT %(limit)s

-- name: read_lanes
-- Headers of messages in the lanes of a fair group: their due times are long ago.
SELECT IF(LENGTH(m.headers) <= 4000, m.headers, NULL)
FROM (SELECT `partition`, `offset` FROM ems_retry FORCE INDEX (due)
  WHERE group_id = %(group_id)s AND claim_id IS NULL AND due_at < '1900-01-01' LIMIT %(limit)s) r
  STRAIGHT_JOIN ems_message m FORCE INDEX (PRIMARY) ON m.topic_id = %(topic_id)s AND m.`partition` = r.`partition` AND m.`offset` = r.`offset`

-- name: read_headers
-- Headers of a stretch of a partition; without those that are too long to be looked at.
SELECT IF(LENGTH(headers) <= 4000, headers, NULL) FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` BETWEEN %(lo)s AND %(hi)s AND kind = 'message'

-- name: read_running
-- The headers of what the live claims of some groups run now: there is one claim for each busy thread.
SELECT c.group_id, IF(LENGTH(m.headers) <= 4000, m.headers, NULL) FROM ems_claim c FORCE INDEX (live)
STRAIGHT_JOIN ems_group g ON g.id = c.group_id
STRAIGHT_JOIN ems_message m FORCE INDEX (PRIMARY) ON m.topic_id = g.topic_id AND m.`partition` = c.`partition`
  AND m.`offset` = IF(c.source = 'stream', COALESCE(c.running, c.acked_to + 1),
    (SELECT MIN(r.`offset`) FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = c.group_id AND r.claim_id = c.claim_id))
WHERE c.state = 'start' AND c.group_id IN %(group_ids)s LIMIT %(limit)s
