-- name: list_quiet
-- Flows of a state that nothing has changed for a while, a page at a time.
SELECT id, state, run, owner, topic_id, parent, error_type IS NOT NULL, topic_id IN (SELECT id FROM ems_topic), changed_at FROM ems_flow FORCE INDEX (state)
WHERE state = %(state)s AND changed_at >= %(after)s AND (changed_at > %(after)s OR id > %(after_id)s)
AND changed_at < NOW(6) - INTERVAL %(quiet_s)s SECOND ORDER BY changed_at, id LIMIT %(limit)s

-- name: list_pending
SELECT flow_id, step, total, topics FROM ems_flow_step WHERE flow_id IN %(flow_ids)s AND pending > 0
AND began_at < NOW(6) - INTERVAL %(quiet_s)s SECOND

-- name: list_numbers
SELECT number FROM ems_flow_end WHERE flow_id = %(flow_id)s AND step = %(step)s

-- name: list_called
SELECT parent FROM ems_flow WHERE parent IN %(parents)s

-- name: list_overdue
SELECT flow_id FROM ems_flow_step WHERE flow_id IN %(flow_ids)s AND ended_at IS NULL AND due_at < NOW(6) - INTERVAL %(quiet_s)s SECOND
UNION SELECT id FROM ems_flow WHERE id IN %(flow_ids)s AND begins_at < NOW(6) - INTERVAL %(quiet_s)s SECOND

-- name: wake_lost
-- Unless it has been run meanwhile.
UPDATE ems_flow SET state = 'ready', owner = %(new_owner)s, changed_at = NOW(6)
WHERE id = %(flow_id)s AND run = %(run)s AND state = %(state)s AND owner = %(owner)s

-- name: fail_lost
-- One whose steps were being undone keeps the error with which it has failed, and is over.
UPDATE ems_flow SET state = 'failed', error = IF(error_type IS NULL, %(error)s, CONCAT(error, '; not all was undone: ', %(error)s)),
  error_type = COALESCE(error_type, %(error_type)s), changed_at = NOW(6), ended_at = NOW(6),
  undone = EXISTS (SELECT 1 FROM ems_flow_step WHERE flow_id = %(flow_id)s AND kind = 'undone')
WHERE id = %(flow_id)s AND run = %(run)s AND state = %(state)s AND owner = %(owner)s

-- name: note_failure
UPDATE ems_flow SET error_type = %(error_type)s, error = %(error)s WHERE id = %(flow_id)s

-- name: has_undo
SELECT 1 FROM ems_flow_step WHERE flow_id = %(flow_id)s AND kind = 'undo' LIMIT 1
