-- name: list_policies
-- The groups that have a policy; a small table.
SELECT s.group_id, s.most_waiting, s.older_ms / 1000, s.below_priority, t.name FROM ems_skip_policy s
JOIN ems_group g ON g.id = s.group_id JOIN ems_topic t ON t.id = g.topic_id ORDER BY s.group_id

-- name: set_policy
INSERT INTO ems_skip_policy (group_id, most_waiting, older_ms, below_priority)
VALUES (%(group_id)s, %(most_waiting)s, %(older_ms)s, %(below_priority)s)
ON DUPLICATE KEY UPDATE most_waiting = VALUES(most_waiting), older_ms = VALUES(older_ms), below_priority = VALUES(below_priority)

-- name: delete_policy
DELETE FROM ems_skip_policy WHERE group_id = %(group_id)s

-- name: is_older
-- True if the first message from a cursor on is older than the limit, and the time of the limit: one probe, because
-- usually it is not older.
SELECT born_at < NOW(6) - INTERVAL %(older_s)s SECOND, NOW(6) - INTERVAL %(older_s)s SECOND FROM ems_message
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(offset)s ORDER BY `offset` LIMIT 1
