-- name: insert_pause
INSERT IGNORE INTO ems_task_pause (group_id, task, paused_at) VALUES (%(group_id)s, %(task)s, NOW(6))

-- name: delete_pause
-- Waits for workers that are just putting messages of the task back, and share-lock the row: see hold_pause.
DELETE FROM ems_task_pause WHERE group_id = %(group_id)s AND task = %(task)s

-- name: mark_group
-- A search for work reads this column with the group's row, and a claim too: a group without paused tasks costs nothing.
UPDATE ems_group SET held_tasks = EXISTS (SELECT 1 FROM ems_task_pause WHERE group_id = %(group_id)s) WHERE id = %(group_id)s

-- name: list_pauses
SELECT group_id, task, paused_at FROM ems_task_pause WHERE group_id IN %(group_ids)s

-- name: list_paused
SELECT task FROM ems_task_pause WHERE group_id = %(group_id)s

-- name: delete_pauses
DELETE FROM ems_task_pause WHERE group_id = %(group_id)s

-- name: reset_held
SET @ems_held = 0

-- name: hold_pause
-- In the transaction that puts messages of a paused task back. If the task was resumed meanwhile they are due at once;
-- otherwise whoever resumes it waits for this commit, and finds them.
SELECT 1 INTO @ems_held FROM ems_task_pause WHERE group_id = %(group_id)s AND task = %(task)s LOCK IN SHARE MODE

-- name: upsert_held
-- No attempt is charged. The retries of the claim have rows already.
INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, last_error, `key`) VALUES

-- name: held_row
(%(group_id)s,%(partition)s,%(offset)s,%(attempt)s,NOW(6) + INTERVAL @ems_held * %(held_s)s SECOND,%(error)s,NULL)

-- name: keyed_held_row
(%(group_id)s,%(partition)s,%(offset)s,%(attempt)s,NOW(6) + INTERVAL @ems_held * %(held_s)s SECOND,%(error)s,(SELECT m.`key` FROM ems_message m WHERE m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s AND m.`offset` = %(offset)s))

-- name: upsert_held_end
ON DUPLICATE KEY UPDATE attempt = VALUES(attempt), due_at = VALUES(due_at), last_error = VALUES(last_error), claim_id = NULL

-- name: list_held
-- The next of the messages of a paused task that were put back: a range of the index.
SELECT `partition`, `offset`, due_at FROM ems_retry FORCE INDEX (due)
WHERE group_id = %(group_id)s AND claim_id IS NULL AND due_at > NOW(6) AND due_at >= %(after)s AND due_at < '9000-01-01' AND last_error = %(error)s
ORDER BY due_at LIMIT %(limit)s

-- name: count_held
-- Of the retries that a group's paused tasks may have, counted up to a limit.
SELECT last_error, COUNT(*) FROM (SELECT last_error FROM ems_retry FORCE INDEX (due)
  WHERE group_id = %(group_id)s AND claim_id IS NULL AND due_at > NOW(6) AND due_at < '9000-01-01' LIMIT %(limit)s) r
WHERE last_error IN %(errors)s GROUP BY last_error
