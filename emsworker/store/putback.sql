-- name: begin_job
-- The ledger also knows how far jobs are that write piece by piece; nobody takes over one that counts as done.
INSERT IGNORE INTO ems_ledger (sink, batch, state, moved, committed_at, moved_at) VALUES (%(sink)s, 0, 'done', 0, NOW(6), NOW(6))

-- name: get_step
SELECT moved FROM ems_ledger WHERE sink = %(sink)s AND batch = 0

-- name: add_step
-- Matches nothing if another run of the job has done this step.
UPDATE ems_ledger SET moved = %(step)s + 1, moved_at = NOW(6) WHERE sink = %(sink)s AND batch = 0 AND moved = %(step)s

-- name: list_waiting
-- Messages of these that the group is to run anyway.
SELECT `offset` FROM ems_retry WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s

-- name: list_present
SELECT `offset` FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s AND kind = 'message'

-- name: put_back
-- Its rows are appended by the store, each a tuple of numbers and hexadecimal literals. IGNORE, because a message may be
-- there still, and an id may have been sent anew.
INSERT IGNORE INTO ems_message (topic_id, `partition`, `offset`, uid, `key`, tag, headers, body, size, born_at, producer_id) VALUES

-- name: note_restored
-- So that retention spares them until they have been run.
INSERT IGNORE INTO ems_restored (topic_id, `partition`, `offset`) VALUES

-- name: add_retries
-- Its rows are appended: attempt 0, due now, each a microsecond after the one before, so that they are taken in order.
INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, `key`) VALUES

-- name: delete_dead
DELETE FROM ems_dead WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s
