-- name: insert_results
-- A second run (after a crash, or of a requeued dead letter) replaces the first result.
INSERT INTO ems_result (topic_id, uid, group_id, state, body, error_type, error, traceback, ended_at, expires_at) VALUES

-- name: result_row
(%(topic_id)s,%(uid)s,%(group_id)s,%(state)s,%(body)s,%(error_type)s,%(error)s,%(traceback)s,NOW(6),NOW(6) + INTERVAL %(ttl_s)s SECOND)

-- name: insert_results_end
ON DUPLICATE KEY UPDATE state = VALUES(state), body = VALUES(body), error_type = VALUES(error_type), error = VALUES(error),
  traceback = VALUES(traceback), ended_at = VALUES(ended_at), expires_at = VALUES(expires_at)

-- name: find_results
-- The results of some messages; if several groups ran a message, the first to end comes first.
SELECT uid, state, body, error_type, error, traceback FROM ems_result
WHERE topic_id IN %(topic_ids)s AND uid IN %(uids)s AND (%(group)s IS NULL OR group_id IN (SELECT id FROM ems_group WHERE name = %(group)s))
AND expires_at > NOW(6) ORDER BY ended_at

-- name: find_buried
-- Messages that ended as dead letters: for instance because they killed their process, which could write no result. By
-- the dead letter's own id: retention may have deleted the message.
SELECT d.uid, d.reason, d.error FROM ems_dead d JOIN ems_group g ON g.id = d.group_id
WHERE d.uid IN %(uids)s AND g.topic_id IN %(topic_ids)s AND (%(group)s IS NULL OR g.name = %(group)s)

-- name: delete_results
DELETE FROM ems_result WHERE topic_id IN %(topic_ids)s AND uid IN %(uids)s

-- name: delete_expired
-- Bounded batches, by the index on the time.
DELETE FROM ems_result WHERE expires_at <= NOW(6) ORDER BY expires_at LIMIT %(limit)s
