-- name: list_in_state
-- A bounded part of the flows in one state, the latest change first. Names and other words are compared by the caller,
-- which bounds how many rows it looks at: there is no index for each of them, because every step would write it.
SELECT {columns}
FROM ems_flow f FORCE INDEX (state) LEFT JOIN ems_topic t ON t.id = f.topic_id
WHERE f.state = %(state)s AND f.changed_at >= %(since)s AND f.changed_at <= %(until)s AND (f.changed_at < %(until)s OR f.id < %(before)s)
ORDER BY f.changed_at DESC, f.id DESC LIMIT %(limit)s

-- name: list_with_attribute
SELECT {columns}
FROM (SELECT flow_id FROM ems_flow_attribute WHERE name = %(name)s AND value = %(value)s AND flow_id < %(before)s
  ORDER BY flow_id DESC LIMIT %(limit)s) a
STRAIGHT_JOIN ems_flow f ON f.id = a.flow_id LEFT JOIN ems_topic t ON t.id = f.topic_id ORDER BY f.id DESC

-- name: filter_by_attribute
SELECT flow_id FROM ems_flow_attribute WHERE name = %(name)s AND value = %(value)s AND flow_id IN %(flows)s

-- name: count_in_state
SELECT name, waits, error_type, undone, COUNT(*), MIN(changed_at), MAX(changed_at) FROM (
  SELECT name, waits, error_type, undone, changed_at FROM ems_flow FORCE INDEX (state)
  WHERE state = %(state)s AND changed_at >= %(since)s AND changed_at <= %(until)s ORDER BY changed_at DESC LIMIT %(limit)s) part
GROUP BY name, waits, error_type, undone

-- name: find_flow
SELECT {columns}
FROM ems_flow f LEFT JOIN ems_topic t ON t.id = f.topic_id WHERE f.`key` = %(key)s

-- name: get_contents
SELECT args, value, error FROM ems_flow WHERE id = %(flow_id)s

-- name: get_key
SELECT `key` FROM ems_flow WHERE id = %(flow_id)s

-- name: list_attributes
SELECT name, value FROM ems_flow_attribute WHERE flow_id = %(flow_id)s ORDER BY name

-- name: list_last_steps
SELECT step, kind, name, total, pending, error_type, due_at, began_at, ended_at
FROM ems_flow_step WHERE flow_id = %(flow_id)s ORDER BY step DESC LIMIT %(limit)s

-- name: list_step_contents
SELECT step, value, error FROM ems_flow_step WHERE flow_id = %(flow_id)s AND step >= %(step)s

-- name: count_steps
SELECT COUNT(*) FROM ems_flow_step WHERE flow_id = %(flow_id)s

-- name: count_failed_calls
SELECT step, COUNT(*), MIN(error_type) FROM ems_flow_end WHERE flow_id = %(flow_id)s AND error_type IS NOT NULL GROUP BY step

-- name: list_failed_calls
SELECT step, number, error_type, error, ended_at FROM ems_flow_end
WHERE flow_id = %(flow_id)s AND error_type IS NOT NULL ORDER BY step DESC, number LIMIT %(limit)s

-- name: list_given_signals
SELECT id, name, step, sent_at FROM ems_flow_signal WHERE flow_id = %(flow_id)s ORDER BY id DESC LIMIT %(limit)s

-- name: list_children
SELECT {columns}
FROM ems_flow f LEFT JOIN ems_topic t ON t.id = f.topic_id
WHERE f.parent LIKE %(prefix)s AND f.state <> 'deleted' ORDER BY f.id LIMIT %(limit)s

-- name: mark_deleted
-- The id is free at once; the beat deletes the rows, a bounded number at a time, and nothing can run the flow meanwhile.
UPDATE ems_flow SET state = 'deleted', `key` = NULL, parent = NULL, changed_at = NOW(6)
WHERE id = %(flow_id)s AND state IN ('done', 'failed', 'cancelled')
