-- name: lock_ended
SELECT state, `key` FROM ems_flow WHERE id = %(flow_id)s AND state IN ('failed', 'cancelled') FOR UPDATE

-- name: get_message
SELECT topic_id, owner FROM ems_flow WHERE id = %(flow_id)s

-- name: find_failed_call
SELECT MAX(step) FROM ems_flow_end WHERE flow_id = %(flow_id)s AND error_type IS NOT NULL

-- name: list_failed_ends
SELECT number, error_type FROM ems_flow_end WHERE flow_id = %(flow_id)s AND step = %(step)s AND error_type IS NOT NULL

-- name: get_topics
SELECT topics FROM ems_flow_step WHERE flow_id = %(flow_id)s AND step = %(step)s

-- name: list_called
SELECT id, state, parent FROM ems_flow WHERE parent LIKE %(prefix)s

-- name: get_value
SELECT value FROM ems_flow WHERE parent = %(parent)s

-- name: delete_failed_ends
DELETE FROM ems_flow_end WHERE flow_id = %(flow_id)s AND step = %(step)s AND error_type IS NOT NULL

-- name: await_again
UPDATE ems_flow_step SET pending = %(pending)s, ended_at = NULL WHERE flow_id = %(flow_id)s AND step = %(step)s

-- name: reopen
UPDATE ems_flow SET state = %(state)s, waits = %(waits)s, owner = %(owner)s, error_type = IF(%(still_fails)s, error_type, NULL),
  error = IF(%(still_fails)s, error, NULL), ended_at = NULL, deadline_at = NULL,
  run = run + 1, changed_at = NOW(6), next_step = GREATEST(next_step, %(next_step)s) WHERE id = %(flow_id)s

-- name: delete_steps
DELETE FROM ems_flow_step WHERE flow_id = %(flow_id)s AND step >= %(step)s

-- name: delete_ends
DELETE FROM ems_flow_end WHERE flow_id = %(flow_id)s AND step >= %(step)s

-- name: give_signals_back
UPDATE ems_flow_signal SET step = NULL WHERE flow_id = %(flow_id)s AND step >= %(step)s
