-- name: topic_id
-- In the place of a topic's id in a row, on a connection of any driver and in a transaction of any isolation level: the id, or
-- error 1242 (two rows in a scalar subquery) if the topic was deleted. The row is shared until the commit, so that whoever
-- deletes the topic waits, and nobody else does. It is found by its primary key, always, and so no gap is locked.
(SELECT %(topic_id)s UNION ALL SELECT %(topic_id)s FROM DUAL WHERE COALESCE((SELECT g.deleted_at IS NOT NULL FROM %(table)s g
  WHERE g.topic_id = %(topic_id)s LOCK IN SHARE MODE), 1))

-- name: hold_topic
-- The same by itself.
SELECT 1 FROM ems_topic_guard WHERE topic_id = %(topic_id)s AND deleted_at IS NULL LOCK IN SHARE MODE

-- name: hold_group
-- A group that is being deleted gets no more rows.
SELECT id FROM ems_group WHERE id = %(group_id)s LOCK IN SHARE MODE

-- name: hold_partition
-- Nor does a partition.
SELECT 1 FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s LOCK IN SHARE MODE
