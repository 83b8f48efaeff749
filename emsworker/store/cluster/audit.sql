-- name: add_step
-- In the transaction of the change itself, so that there is no change without its row, and no row without its change.
-- It is the transaction's last statement, and only the thread of the action locks its row. An operator may count up,
-- but neither rewrite who did what nor delete it; so this is no upsert, which would need more.
UPDATE ems_audit SET changed = changed + %(changed)s, steps = steps + 1, ended_at = NOW(6) WHERE action_id = %(action_id)s

-- name: add_action
INSERT INTO ems_audit (action_id, actor, action, target, detail, changed, steps, begun_at, ended_at)
VALUES (%(action_id)s, %(actor)s, %(action)s, %(target)s, %(detail)s, %(changed)s, 1, NOW(6), NOW(6))

-- name: list_actions
SELECT action_id, actor, action, target, detail, changed, steps, begun_at, ended_at FROM ems_audit
WHERE action_id < %(before)s ORDER BY action_id DESC LIMIT %(limit)s

-- name: get_action
SELECT action_id, actor, action, target, detail, changed, steps, begun_at, ended_at FROM ems_audit WHERE action_id = %(action_id)s
