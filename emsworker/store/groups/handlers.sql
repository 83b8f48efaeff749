-- name: list_handlers
SELECT name, on_error, ladder, max_attempts FROM ems_handler WHERE group_id = %(group_id)s

-- name: declare_handler
INSERT INTO ems_handler (group_id, name, on_error, ladder, max_attempts)
VALUES (%(group_id)s, %(name)s, %(on_error)s, %(ladder)s, %(max_attempts)s)
ON DUPLICATE KEY UPDATE on_error = VALUES(on_error), ladder = VALUES(ladder), max_attempts = VALUES(max_attempts)

-- name: delete_others
-- A group has either tasks or one subscription, so its rows of the other kind are obsolete.
DELETE FROM ems_handler WHERE group_id = %(group_id)s AND IF(name = '', 1, 0) <> %(subscribed)s

-- name: delete_handlers
DELETE FROM ems_handler WHERE group_id = %(group_id)s
