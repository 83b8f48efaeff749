-- name: find_elsewhere
-- The name of a topic of which messages may be on other servers: it is kept by one, or was before.
SELECT name FROM ems_topic WHERE id = %(topic_id)s AND (server IS NOT NULL OR former <> '')

-- name: find_dead
-- By the dead letter's own id: retention may have deleted the message.
SELECT d.error_type, d.reason, d.error FROM ems_dead d JOIN ems_group g ON g.id = d.group_id
WHERE d.uid = %(uid)s AND g.topic_id = %(topic_id)s LIMIT 1
