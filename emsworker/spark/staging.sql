-- name: begin_task
-- Idempotent if repeated after a lost answer.
INSERT INTO ems_stage_task (token, begun_at) VALUES (%(token)s, NOW(6)) ON DUPLICATE KEY UPDATE token = VALUES(token)

-- name: insert_rows
INSERT INTO ems_stage (token, chunk, place, topic_id, `partition`, level, delay_us, {message_columns}) VALUES

-- name: staged_row
(%(token)s,%(chunk)s,%(place)s,%(topic_id)s,%(partition)s,%(level)s,%(delay_us)s,%(message)s)

-- name: keep_first
-- Idempotent if the same chunk is repeated after a lost answer.
ON DUPLICATE KEY UPDATE place = VALUES(place)

-- name: get_batch
SELECT state, moved, `rows` FROM ems_ledger WHERE sink = %(sink)s AND batch = %(batch)s

-- name: add_batch
-- The commit of a job: from then on its rows will be in the stream once, whichever process moves them.
INSERT INTO ems_ledger (sink, batch, state, `rows`, committed_at, moved_at) VALUES (%(sink)s, %(batch)s, 'moving', %(rows)s, NOW(6), NOW(6))

-- name: assign_task
-- Matches nothing if the task was given up meanwhile.
UPDATE ems_stage_task SET sink = %(sink)s, batch = %(batch)s, place = %(place)s, chunks = %(chunks)s WHERE token = %(token)s AND sink IS NULL

-- name: list_tasks
SELECT token, chunks FROM ems_stage_task WHERE sink = %(sink)s AND batch = %(batch)s ORDER BY place

-- name: count_chunk
-- How many rows go to which partition, and how many of a topic (partition NULL) wait in the outbox first.
SELECT topic_id, IF(delay_us IS NULL, `partition`, NULL) AS destination, COUNT(*)
FROM ems_stage WHERE token = %(token)s AND chunk = %(chunk)s
GROUP BY topic_id, destination ORDER BY topic_id, destination

-- name: step_batch
-- Matches nothing if another process has moved this chunk: the fence of the packet that moves it. Its row is the first
-- that the packet locks.
UPDATE ems_ledger SET moved = %(moved)s + 1, moved_at = NOW(6) WHERE sink = %(sink)s AND batch = %(batch)s AND state = 'moving' AND moved = %(moved)s

-- name: move_rows
-- Runs after the statement that raised the counter. The bodies never leave the server.
INSERT INTO ems_message (topic_id, `partition`, `offset`, born_at, {message_columns}, producer_id, size)
SELECT topic_id, `partition`, LAST_INSERT_ID() + ROW_NUMBER() OVER (ORDER BY place) - 1, NOW(6), {message_columns}, %(producer_id)s, LENGTH(body)
FROM ems_stage WHERE token = %(token)s AND chunk = %(chunk)s AND topic_id = %(topic_id)s AND `partition` = %(partition)s AND delay_us IS NULL

-- name: move_delayed
-- The delay begins with the commit. Each row is a microsecond later than the one before it, which keeps them in order.
INSERT INTO ems_outbox (topic_id, due_at, `partition`, {message_columns}, producer_id, created_at, level)
SELECT %(guarded_topic_id)s, UTC_TIMESTAMP(6) + INTERVAL delay_us + place MICROSECOND, `partition`, {message_columns}, %(producer_id)s, UTC_TIMESTAMP(6), level
FROM ems_stage WHERE token = %(token)s AND chunk = %(chunk)s AND topic_id = %(topic_id)s AND delay_us IS NOT NULL

-- name: delete_chunk
DELETE FROM ems_stage WHERE token = %(token)s AND chunk = %(chunk)s

-- name: end_batch
UPDATE ems_ledger SET state = 'done', moved_at = NOW(6) WHERE sink = %(sink)s AND batch = %(batch)s

-- name: forget_batch
DELETE FROM ems_ledger WHERE sink = %(sink)s AND batch = %(batch)s AND state = 'done'

-- name: delete_old_batches
-- Of named jobs, which nobody runs again after so long; a query may rest for any time before it repeats its last batch.
DELETE FROM ems_ledger WHERE sink >= 'job:' AND sink < 'job;' AND state = 'done' AND moved_at < NOW(6) - INTERVAL %(age_s)s SECOND LIMIT %(limit)s

-- name: delete_tasks
DELETE FROM ems_stage_task WHERE sink = %(sink)s AND batch = %(batch)s

-- name: forget_old_batches
-- Spark can run only its last batch again.
DELETE FROM ems_ledger WHERE sink = %(sink)s AND batch < %(before)s AND state = 'done'

-- name: give_up_task
-- Matches nothing if the task is committed.
UPDATE ems_stage_task SET sink = '' WHERE token = %(token)s AND (sink IS NULL OR sink = '')

-- name: delete_some_rows
DELETE FROM ems_stage WHERE token = %(token)s LIMIT 1000

-- name: delete_given_up
DELETE FROM ems_stage_task WHERE token = %(token)s AND sink = ''

-- name: list_abandoned
-- Tasks that were killed, or whose job was killed: no commit will name them any more.
SELECT token FROM ems_stage_task WHERE begun_at < NOW(6) - INTERVAL %(age_s)s SECOND AND (sink IS NULL OR sink = '')
ORDER BY begun_at LIMIT %(limit)s

-- name: list_stuck
-- Committed jobs whose movers have died.
SELECT sink, batch FROM ems_ledger WHERE state = 'moving' AND moved_at < NOW(6) - INTERVAL %(age_s)s SECOND LIMIT %(limit)s
