-- name: note_step
-- In the transaction of the change itself, so that there is no change without its row, and no row without its change.
-- It is the transaction's last statement: nothing waits for the row's lock but another step of the same action.
INSERT INTO ems_audit (action_id, actor, action, target, detail, changed, steps, begun_at, ended_at)
VALUES (%(action_id)s, %(actor)s, %(action)s, %(target)s, %(detail)s, %(changed)s, 1, NOW(6), NOW(6))
ON DUPLICATE KEY UPDATE changed = changed + VALUES(changed), steps = steps + 1, ended_at = VALUES(ended_at)

-- name: list_actions
SELECT action_id, actor, action, target, detail, changed, steps, begun_at, ended_at FROM ems_audit
WHERE action_id < %(before)s ORDER BY action_id DESC LIMIT %(limit)s

-- name: get_action
SELECT action_id, actor, action, target, detail, changed, steps, begun_at, ended_at FROM ems_audit WHERE action_id = %(action_id)s
