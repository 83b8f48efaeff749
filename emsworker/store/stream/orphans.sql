-- Rows of topics and partitions that do not exist.

-- name: list_topics
SELECT id, partitions, priorities FROM ems_topic

-- name: list_partitions
SELECT topic_id, `partition` FROM ems_partition

-- name: first_topic_of_outbox
-- The first row between two topics that exist: an index dive, because both bounds are constants.
(SELECT topic_id FROM ems_outbox FORCE INDEX (PRIMARY) WHERE topic_id > %(low)s AND topic_id < %(high)s ORDER BY topic_id LIMIT 1)

-- name: first_topic_of_messages
(SELECT topic_id, `partition` FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id > %(low)s AND topic_id < %(high)s ORDER BY topic_id, `partition`, `offset` LIMIT 1)

-- name: first_partition
-- The first row between two partitions that exist, the filler behind the lower one left out.
(SELECT topic_id, `partition` FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` > %(low)s AND `partition` < %(high)s AND (`partition` > %(low)s + 1 OR `offset` > 0)
ORDER BY topic_id, `partition`, `offset` LIMIT 1)

-- name: list_last
-- The partition of the last row of each topic, and whether that is at offset 0, as fillers are. One index dive each (see
-- list_bounds in scan.sql).
SELECT l.id, l.last DIV 2, l.last MOD 2 FROM (SELECT t.id, (SELECT m.`partition` * 2 + (m.`offset` = 0)
    FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = t.id ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1) AS last
  FROM ems_topic t) l WHERE l.last IS NOT NULL

-- name: find_owner
-- The topic's name, whether it ever existed, when it was deleted, whether its deletion has had an hour to delete all rows,
-- and whether it has the partition, and the one before. Read after the rows were locked: an honest program has committed
-- the topic before its rows, or with them.
SELECT t.name, g.topic_id IS NOT NULL, g.deleted_at, COALESCE(g.deleted_at < NOW(6) - INTERVAL 1 HOUR, 0),
  p.topic_id IS NOT NULL, n.topic_id IS NOT NULL
FROM (SELECT 1) one LEFT JOIN ems_topic t ON t.id = %(topic_id)s LEFT JOIN ems_topic_guard g ON g.topic_id = %(topic_id)s
LEFT JOIN ems_partition p ON p.topic_id = %(topic_id)s AND p.`partition` = %(partition)s
LEFT JOIN ems_partition n ON n.topic_id = %(topic_id)s AND n.`partition` = %(partition)s - 1

-- name: lock_outbox
SELECT uid, total_size FROM ems_outbox FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s ORDER BY due_at, uid LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- name: lock_messages
SELECT `offset`, total_size FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s ORDER BY `offset` LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- name: refuse_outbox
INSERT IGNORE INTO ems_publish (topic, body, `key`, tag, headers, uid, refused_at, error)
SELECT %(topic)s, {p_plain_columns}, NOW(6), %(error)s
FROM (%(rows)s) d STRAIGHT_JOIN ems_outbox p FORCE INDEX (uid) ON p.topic_id = %(topic_id)s AND p.uid = d.uid

-- name: refuse_messages
-- Tombstones and cancelled messages hold nothing to keep.
INSERT IGNORE INTO ems_publish (topic, body, `key`, tag, headers, uid, refused_at, error)
SELECT %(topic)s, {m_plain_columns}, NOW(6), %(error)s
FROM (%(rows)s) d STRAIGHT_JOIN ems_message m FORCE INDEX (PRIMARY)
ON m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s AND m.`offset` = d.`offset` WHERE m.kind = 'message'

-- name: delete_messages
DELETE m FROM (%(rows)s) d STRAIGHT_JOIN ems_message m FORCE INDEX (PRIMARY)
ON m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s AND m.`offset` = d.`offset`

-- name: one_uid
SELECT %(uid)s AS uid

-- name: one_offset
SELECT %(offset)s AS `offset`
