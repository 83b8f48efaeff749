-- name: insert_results
-- A second run (after a crash, or of a requeued dead letter) replaces the first result.
INSERT INTO ems_result (topic_id, uid, group_id, state, body, error_type, error, traceback, ended_at, expires_at) VALUES

-- name: result_row
(%(topic_id)s,%(uid)s,%(group_id)s,%(state)s,%(body)s,%(error_type)s,%(error)s,%(traceback)s,NOW(6),NOW(6) + INTERVAL %(ttl_s)s SECOND)

-- name: done_row
-- The result of a task that has succeeded, as most have.
(%(topic_id)s,%(uid)s,%(group_id)s,'done',%(body)s,NULL,NULL,NULL,NOW(6),NOW(6) + INTERVAL %(ttl_s)s SECOND)

-- name: insert_results_end
ON DUPLICATE KEY UPDATE state = VALUES(state), body = VALUES(body), error_type = VALUES(error_type), error = VALUES(error),
  traceback = VALUES(traceback), ended_at = VALUES(ended_at), expires_at = VALUES(expires_at)

-- name: find_results
-- The results of some messages; if several groups ran a message, the first to end comes first.
SELECT uid, state, body, error_type, error, traceback FROM ems_result
WHERE topic_id IN %(topic_ids)s AND uid IN %(uids)s AND (%(group)s IS NULL OR group_id IN (SELECT id FROM ems_group WHERE name = %(group)s))
AND group_id BETWEEN 1 AND 4294967294 AND expires_at > NOW(6) ORDER BY ended_at

-- name: find_buried
-- Messages that ended without a result. Dead letters: for instance because they killed their process, which could write
-- none. Cancelled ones (error NULL), once no client has them any more; one that was delayed may have been sent again.
-- A claim that came after the clients were asked (a) has not read the message: those that were are in ems_cancel.
-- Dead letters are found by their own id: retention may have deleted the message.
SELECT d.uid, d.reason, d.error FROM ems_dead d JOIN ems_group g ON g.id = d.group_id
WHERE d.uid IN %(uids)s AND g.topic_id IN %(topic_ids)s AND (%(group)s IS NULL OR g.name = %(group)s)
UNION ALL
SELECT k.uid, '', NULL FROM ems_result k LEFT JOIN ems_message m ON m.topic_id = k.topic_id AND m.uid = k.uid
LEFT JOIN ems_result a ON a.topic_id = k.topic_id AND a.uid = k.uid AND a.group_id = 4294967295
WHERE k.topic_id IN %(topic_ids)s AND k.uid IN %(uids)s AND k.group_id = 0 AND k.expires_at > NOW(6)
AND (m.kind IS NULL OR m.kind = 'cancelled')
AND NOT EXISTS (SELECT 1 FROM ems_outbox o WHERE o.topic_id = k.topic_id AND o.uid = k.uid)
AND NOT EXISTS (SELECT 1 FROM ems_group g JOIN ems_claim c FORCE INDEX (live) ON c.state = 'start' AND c.group_id = g.id
  WHERE g.topic_id = m.topic_id AND (%(group)s IS NULL OR g.name = %(group)s) AND c.`partition` = m.`partition` AND c.source = 'stream'
  AND c.lo <= m.`offset` AND c.hi >= m.`offset` AND c.acked_to < m.`offset`
  AND (a.uid IS NULL OR EXISTS (SELECT 1 FROM ems_cancel x WHERE x.group_id = g.id AND x.`partition` = m.`partition` AND x.`offset` = m.`offset`)))
AND NOT EXISTS (SELECT 1 FROM ems_group g JOIN ems_retry r ON r.group_id = g.id
  WHERE g.topic_id = m.topic_id AND (%(group)s IS NULL OR g.name = %(group)s) AND r.`partition` = m.`partition` AND r.`offset` = m.`offset`
  AND r.claim_id IS NOT NULL
  AND (a.uid IS NULL OR EXISTS (SELECT 1 FROM ems_cancel x WHERE x.group_id = g.id AND x.`partition` = m.`partition` AND x.`offset` = m.`offset`)))

-- name: delete_results
DELETE FROM ems_result WHERE topic_id IN %(topic_ids)s AND uid IN %(uids)s

-- name: delete_expired
-- Bounded batches, by the index on the time.
DELETE FROM ems_result WHERE expires_at <= NOW(6) ORDER BY expires_at LIMIT %(limit)s
