-- name: mark_expired
-- The first of two steps: nobody can find or retry a flow of which some rows are gone.
UPDATE ems_flow SET state = 'deleted', `key` = NULL, parent = NULL, changed_at = NOW(6)
WHERE ended_at < NOW(6) - INTERVAL %(keep_s)s SECOND AND state IN ('done', 'failed', 'cancelled') ORDER BY ended_at LIMIT %(limit)s

-- name: list_deleted
SELECT id FROM ems_flow WHERE state = 'deleted' ORDER BY changed_at LIMIT %(limit)s

-- name: delete_ends
DELETE FROM ems_flow_end WHERE flow_id IN %(flows)s LIMIT %(limit)s

-- name: delete_steps
DELETE FROM ems_flow_step WHERE flow_id IN %(flows)s LIMIT %(limit)s

-- name: delete_signals
DELETE FROM ems_flow_signal WHERE flow_id IN %(flows)s LIMIT %(limit)s

-- name: delete_values
DELETE FROM ems_flow_value WHERE flow_id IN %(flows)s LIMIT %(limit)s

-- name: delete_attributes
DELETE FROM ems_flow_attribute WHERE flow_id IN %(flows)s LIMIT %(limit)s

-- name: delete_flows
DELETE FROM ems_flow WHERE id IN %(flows)s AND state = 'deleted'
