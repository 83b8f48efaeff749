-- name: add_notice
-- In the transaction that makes the dead letter.
INSERT IGNORE INTO ems_dead_notice (group_id, `partition`, `offset`, noted_at) VALUES (%(group_id)s, %(partition)s, %(offset)s, NOW(6))

-- name: list_notices
SELECT group_id, `partition`, `offset` FROM ems_dead_notice WHERE group_id IN %(group_ids)s ORDER BY group_id, `partition`, `offset` LIMIT %(limit)s

-- name: get_dead
SELECT attempts, reason, error, error_type, `offset`, {message_columns}, born_at FROM ems_dead
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s

-- name: delete_notice
DELETE FROM ems_dead_notice WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s

-- name: delete_old
-- Of groups whose workers have no middleware that wants them.
DELETE FROM ems_dead_notice WHERE noted_at < NOW(6) - INTERVAL 1 DAY ORDER BY noted_at LIMIT %(limit)s
