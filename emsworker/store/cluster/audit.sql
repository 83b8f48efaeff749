-- name: add_step
-- In the transaction of the change itself, so that there is no change without its row, and no row without its change.
-- Each step has a row of its own: an operator may insert rows, but neither change nor delete any.
INSERT INTO ems_audit (action_id, step, actor, action, target, detail, changed, changed_at)
VALUES (%(action_id)s, %(step)s, %(actor)s, %(action)s, %(target)s, %(detail)s, %(changed)s, NOW(6))

-- name: list_actions
-- All steps of an action have the same texts.
SELECT action_id, MIN(actor), MIN(action), MIN(target), MIN(detail), SUM(changed), COUNT(*), MIN(changed_at), MAX(changed_at)
FROM ems_audit FORCE INDEX (PRIMARY) WHERE action_id < %(before)s GROUP BY action_id ORDER BY action_id DESC LIMIT %(limit)s

-- name: get_action
SELECT action_id, MIN(actor), MIN(action), MIN(target), MIN(detail), SUM(changed), COUNT(*), MIN(changed_at), MAX(changed_at)
FROM ems_audit WHERE action_id = %(action_id)s GROUP BY action_id

-- name: find_cancel
-- The latest action that cancelled a message, of so many: the table has no index on what was changed.
SELECT action_id, actor, action, target, detail, changed, 1, changed_at, changed_at
FROM (SELECT * FROM ems_audit FORCE INDEX (PRIMARY) ORDER BY action_id DESC, step DESC LIMIT %(most)s) a
WHERE action = 'cancel message' AND target LIKE %(target)s AND changed > 0 ORDER BY action_id DESC LIMIT 1

-- name: delete_old
-- The first six bytes of an id are milliseconds since 1970.
DELETE FROM ems_audit
WHERE action_id < UNHEX(CONCAT(LPAD(HEX(FLOOR((UNIX_TIMESTAMP(NOW(3)) - %(keep_s)s) * 1000)), 12, '0'), REPEAT('0', 20)))
ORDER BY action_id, step LIMIT %(limit)s
