-- name: begin_job
-- The ledger also records how far jobs are that write in batches; in state 'done' no other process takes them over.
INSERT IGNORE INTO ems_ledger (sink, batch, state, moved, committed_at, moved_at) VALUES (%(sink)s, 0, 'done', 0, NOW(6), NOW(6))

-- name: get_step
SELECT moved FROM ems_ledger WHERE sink = %(sink)s AND batch = 0

-- name: add_step
-- Matches nothing if another run of the job has done this step.
UPDATE ems_ledger SET moved = %(step)s + 1, moved_at = NOW(6) WHERE sink = %(sink)s AND batch = 0 AND moved = %(step)s

-- name: list_waiting
-- Those of the messages that the group will run anyway.
SELECT `offset` FROM ems_retry WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s

-- name: list_present
SELECT `offset` FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s AND kind = 'message'

-- name: put_back
-- IGNORE, because a message may still exist, and its uid may have been sent again.
INSERT IGNORE INTO ems_message (topic_id, `partition`, `offset`, uid, `key`, tag, headers, body, size, born_at, producer_id) VALUES

-- name: message_row
(%(topic_id)s,%(partition)s,%(offset)s,%(uid)s,%(key)s,%(tag)s,%(headers)s,%(body)s,%(size)s,'1970-01-01' + INTERVAL %(born_us)s MICROSECOND,%(producer_id)s)

-- name: add_retries
-- Attempt 0, due now, each a microsecond after the previous one, so that they run in order.
INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, `key`) VALUES

-- name: retry_row
(%(group_id)s,%(partition)s,%(offset)s,0,NOW(6) + INTERVAL %(place)s MICROSECOND,%(key)s)

-- name: delete_dead
DELETE FROM ems_dead WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s
