-- name: list_failed_calls
SELECT s.topics, e.step, e.number FROM ems_flow_end e JOIN ems_flow_step s ON s.flow_id = e.flow_id AND s.step = e.step
WHERE e.flow_id = %(flow_id)s AND e.step >= %(step)s AND e.error_type IS NOT NULL AND s.topics IS NOT NULL

-- name: list_failed_children
SELECT id, parent, topic_id, owner FROM ems_flow WHERE parent LIKE %(prefix)s AND state = 'failed'

-- name: find_dead
SELECT d.uid, d.group_id, d.`partition`, d.`offset` FROM ems_dead d FORCE INDEX (uid) JOIN ems_group g ON g.id = d.group_id
WHERE g.topic_id = %(topic_id)s AND d.uid IN %(uids)s
