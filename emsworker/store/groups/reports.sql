-- name: upsert_reports
-- Rows are few: the last report of a run, at most twice a second.
INSERT INTO ems_progress (topic_id, uid, group_id, client_id, attempt, fraction, told, reported_at) VALUES

-- name: report_row
(%(topic_id)s,%(uid)s,%(group_id)s,%(client_id)s,%(attempt)s,%(fraction)s,%(text)s,NOW(6))

-- name: upsert_reports_end
ON DUPLICATE KEY UPDATE client_id = VALUES(client_id), attempt = VALUES(attempt), fraction = VALUES(fraction), told = VALUES(told),
  reported_at = VALUES(reported_at)

-- name: delete_reports
-- Reports of messages that have ended.
DELETE FROM ems_progress WHERE topic_id = %(topic_id)s AND uid IN %(uids)s AND group_id = %(group_id)s

-- name: find_reports
SELECT p.uid, p.fraction, p.told, p.attempt, p.client_id, p.reported_at FROM ems_progress p
WHERE p.topic_id IN %(topic_ids)s AND p.uid IN %(uids)s AND (%(group)s IS NULL OR p.group_id IN (SELECT id FROM ems_group WHERE name = %(group)s))
ORDER BY p.reported_at

-- name: list_reports
-- Reports of registered clients; a client that died leaves its last report until the message has ended elsewhere.
SELECT p.client_id, p.fraction, p.told, p.attempt, p.client_id, p.reported_at FROM ems_client c
JOIN ems_progress p ON p.client_id = c.client_id ORDER BY p.reported_at

-- name: delete_old
-- Reports that no flush deleted, for example because the beat gave up the message.
DELETE FROM ems_progress WHERE reported_at < NOW(6) - INTERVAL 1 DAY ORDER BY reported_at LIMIT %(limit)s
