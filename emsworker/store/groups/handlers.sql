-- name: list_handlers
SELECT name, on_error, ladder, max_attempts, requires FROM ems_handler WHERE group_id = %(group_id)s

-- name: declare_handler
INSERT INTO ems_handler (group_id, name, on_error, ladder, max_attempts, requires)
VALUES (%(group_id)s, %(name)s, %(on_error)s, %(ladder)s, %(max_attempts)s, %(requires)s)
ON DUPLICATE KEY UPDATE on_error = VALUES(on_error), ladder = VALUES(ladder), max_attempts = VALUES(max_attempts), requires = VALUES(requires)

-- name: set_requires
-- A group is run by workers of one kind: tasks that only another version of the app has follow what is declared last.
UPDATE ems_handler SET requires = %(requires)s WHERE group_id = %(group_id)s AND requires <> %(requires)s

-- name: delete_others
-- A group has either tasks or one subscription, so its rows of the other kind are obsolete.
DELETE FROM ems_handler WHERE group_id = %(group_id)s AND IF(name = '', 1, 0) <> %(subscribed)s

-- name: delete_handlers
DELETE FROM ems_handler WHERE group_id = %(group_id)s

-- name: list_required
-- The tags that groups require.
SELECT DISTINCT group_id, requires FROM ems_handler WHERE requires <> '' AND group_id IN %(group_ids)s

-- name: list_required_with_work
-- Groups that require tags and have messages at or behind a cursor, waiting claims or due retries, by name.
SELECT DISTINCT g.id, h.requires, t.name, g.name FROM ems_handler h JOIN ems_group g ON g.id = h.group_id JOIN ems_topic t ON t.id = g.topic_id
WHERE h.requires <> '' AND g.paused = 0 AND (
  EXISTS (SELECT 1 FROM ems_cursor c WHERE c.group_id = g.id AND (SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY)
    WHERE m.topic_id = g.topic_id AND m.`partition` = c.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1) >= c.next_offset)
  OR EXISTS (SELECT 1 FROM ems_claim c FORCE INDEX (live) WHERE c.state = 'waiting' AND c.group_id = g.id)
  OR (SELECT r.due_at FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = g.id AND r.claim_id IS NULL LIMIT 1) <= NOW(6))
ORDER BY t.name, g.name
