-- name: get_message
SELECT topic_id, owner FROM ems_flow WHERE id = %(flow_id)s

-- name: list_failed_calls
SELECT s.topics, e.step, e.number FROM ems_flow_end e JOIN ems_flow_step s ON s.flow_id = e.flow_id AND s.step = e.step
WHERE e.flow_id = %(flow_id)s AND e.step >= %(step)s AND e.error_type IS NOT NULL AND s.topics IS NOT NULL

-- name: list_failed_children
SELECT id, parent FROM ems_flow WHERE parent LIKE %(prefix)s AND state = 'failed'

-- name: find_dead
SELECT d.group_id, d.`partition`, d.`offset` FROM ems_message m JOIN ems_group g ON g.topic_id = m.topic_id
JOIN ems_dead d ON d.group_id = g.id AND d.`partition` = m.`partition` AND d.`offset` = m.`offset`
WHERE m.topic_id = %(topic_id)s AND m.uid IN %(uids)s
