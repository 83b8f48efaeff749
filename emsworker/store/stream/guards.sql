-- name: topic_id
-- Replaces a topic's id in a row, with any driver and at any isolation level: it yields the id, or error 1242 (two rows
-- in a scalar subquery) if the topic was deleted. The guard's row is share-locked until the commit, so that only a
-- deletion of the topic waits. The row always exists and is found by its primary key, so no gap is locked.
(SELECT %(topic_id)s UNION ALL SELECT %(topic_id)s FROM DUAL WHERE COALESCE((SELECT g.deleted_at IS NOT NULL FROM %(database)s.ems_topic_guard g
  WHERE g.topic_id = %(topic_id)s LOCK IN SHARE MODE), 1))

-- name: kept_topic_id
-- The same, and an error as well if another server keeps the topic by now; a move of the topic waits for the commit.
(SELECT %(topic_id)s UNION ALL SELECT %(topic_id)s FROM DUAL WHERE COALESCE((SELECT g.deleted_at IS NOT NULL OR g.moved FROM %(database)s.ems_topic_guard g
  WHERE g.topic_id = %(topic_id)s LOCK IN SHARE MODE), 1))

-- name: last_move
SELECT last_move FROM ems_topic_guard WHERE topic_id = %(topic_id)s

-- name: hold_unmoved
SELECT 1 FROM ems_topic_guard WHERE topic_id = %(topic_id)s AND deleted_at IS NULL AND last_move = %(last_move)s LOCK IN SHARE MODE

-- name: hold_topic
-- The same guard as a statement of its own.
SELECT 1 FROM ems_topic_guard WHERE topic_id = %(topic_id)s AND deleted_at IS NULL LOCK IN SHARE MODE

-- name: hold_group
-- A group that is being deleted gets no more rows.
SELECT id FROM ems_group WHERE id = %(group_id)s LOCK IN SHARE MODE

-- name: hold_partition
-- A partition that is being deleted gets no more rows.
SELECT 1 FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s LOCK IN SHARE MODE
