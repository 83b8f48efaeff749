-- name: find_elsewhere
-- The name of a topic of which messages may be on other servers: it is kept by one, or was before.
SELECT name FROM ems_topic WHERE id = %(topic_id)s AND (server IS NOT NULL OR former <> '')

-- name: find_dead
SELECT d.error_type, d.reason, d.error FROM ems_message m JOIN ems_group g ON g.topic_id = m.topic_id
JOIN ems_dead d ON d.group_id = g.id AND d.`partition` = m.`partition` AND d.`offset` = m.`offset`
WHERE m.topic_id = %(topic_id)s AND m.uid = %(uid)s LIMIT 1
