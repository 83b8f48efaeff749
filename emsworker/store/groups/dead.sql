-- name: get_log_start
-- Shared, so that retention cannot raise the log start offset before our commit.
SELECT log_start FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s LOCK IN SHARE MODE

-- name: list_dead
-- One page of a group, by primary key, without the bodies.
SELECT `partition`, `offset`, uid, `key`, tag, born_at, dead_at, attempts, reason FROM ems_dead
WHERE group_id = %(group_id)s AND `partition` >= %(partition)s AND (`partition` > %(partition)s OR `offset` > %(offset)s)
ORDER BY `partition`, `offset` LIMIT %(limit)s

-- name: get_dead
SELECT `partition`, `offset`, uid, `key`, tag, born_at, dead_at, attempts, reason, LEFT(headers, %(header_bytes)s), LEFT(body, %(body_bytes)s), {body_size},
  error, producer_id FROM ems_dead
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s

-- name: find_dead
-- By message id: if retention has deleted the message, only the dead letter still has its id.
SELECT group_id, `partition`, `offset` FROM ems_dead FORCE INDEX (uid) WHERE uid = %(uid)s

-- name: find_dead_at
SELECT group_id, `partition`, `offset` FROM ems_dead
WHERE group_id IN %(group_ids)s AND `partition` = %(partition)s AND `offset` = %(offset)s

-- name: count_dead
SELECT COUNT(*) FROM ems_dead WHERE group_id = %(group_id)s

-- name: lock_dead
SELECT `offset` FROM ems_dead WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s
ORDER BY `offset` FOR UPDATE

-- name: list_present
-- Those of the messages that are still in the stream.
SELECT `offset` FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s AND kind = 'message'

-- name: restore_messages
-- For messages that retention has deleted: a retry reads its body from the stream, so the dead letter's copy goes back
-- to its old offset (below the log start offset, where no cursor passes again). IGNORE, because its id may have been
-- sent again.
INSERT IGNORE INTO ems_message (topic_id, `partition`, `offset`, {message_columns}, size, born_at, producer_id)
SELECT %(topic_id)s, d.`partition`, d.`offset`, {d_message_columns}, {d_body_size}, d.born_at, d.producer_id
FROM ems_dead d WHERE d.group_id = %(group_id)s AND d.`partition` = %(partition)s AND d.`offset` IN %(offsets)s

-- name: note_restored
-- Makes retention keep them until they have run, and then delete them with the attempts that it had kept.
INSERT IGNORE INTO ems_restored (topic_id, `partition`, `offset`) VALUES

-- name: restored_row
(%(topic_id)s,%(partition)s,%(offset)s)

-- name: add_fresh_retries
-- Attempt 0, due now, so that each runs with a fresh ladder.
INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, `key`) VALUES

-- name: fresh_retry_row
(%(group_id)s,%(partition)s,%(offset)s,0,NOW(6),NULL)

-- name: keyed_fresh_retry_row
(%(group_id)s,%(partition)s,%(offset)s,0,NOW(6),(SELECT d.`key` FROM ems_dead d WHERE d.group_id = %(group_id)s AND d.`partition` = %(partition)s AND d.`offset` = %(offset)s))

-- name: delete_dead
DELETE FROM ems_dead WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s
