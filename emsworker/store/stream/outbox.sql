-- name: insert_outbox
-- It runs on a connection of any driver: its rows hold only numbers and hexadecimal literals. The database is named,
-- because a caller's connection may use another one. The columns are not: for ON DUPLICATE KEY UPDATE, MariaDB requires
-- the right to change each column that is named, and a producer must not be able to rewrite what waits. So the rows
-- have all columns in the order of the table; the last one, total_size, is generated.
INSERT INTO %(database)s.ems_outbox VALUES

-- name: delayed_row
-- A microsecond more in each row keeps the rows in order.
(%(topic_id)s,UTC_TIMESTAMP(6) + INTERVAL %(delay_us)s MICROSECOND,%(partition)s,%(message)s,UTC_TIMESTAMP(6),%(level)s,DEFAULT)

-- name: timed_row
(%(topic_id)s,%(due_at)s + INTERVAL %(number)s MICROSECOND,%(partition)s,%(message)s,UTC_TIMESTAMP(6),%(level)s,DEFAULT)

-- name: keep_first
-- Idempotent if repeated after a lost answer: the uid is unique. This is the one column that a producer may change.
ON DUPLICATE KEY UPDATE created_at = created_at

-- name: find_outbox
SELECT uid FROM ems_outbox WHERE topic_id = %(topic_id)s AND uid IN %(uids)s

-- name: find_due
-- For every topic of this server with messages in the outbox: seconds until the first is due; one index dive for each topic.
SELECT d.id, d.name, d.partitions, COALESCE(TIMESTAMPDIFF(MICROSECOND, NOW(6), d.due_at) / 1000000, 0) FROM (
  SELECT t.id, t.name, t.partitions,
    (SELECT p.due_at FROM ems_outbox p FORCE INDEX (PRIMARY) WHERE p.topic_id = t.id ORDER BY p.topic_id, p.due_at LIMIT 1) AS due_at
  FROM ems_topic t WHERE t.server IS NULL
) d WHERE d.due_at IS NOT NULL

-- name: find_plain
-- A row, which no topic has, if rows of ems_publish wait.
SELECT 0, '', 0, 0.0 FROM (SELECT 1 FROM ems_publish FORCE INDEX (waiting) WHERE refused_at IS NULL LIMIT 1) w

-- name: lock_due
-- Concurrent relays share the work; each row is moved by the relay that locks it.
SELECT uid, `partition`, `key`, level, total_size FROM ems_outbox FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND due_at <= NOW(6) - INTERVAL %(late_us)s MICROSECOND ORDER BY due_at, uid LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- name: move_rows
-- The bodies never leave the server, so that none can be too large for a packet. It finds its rows as delete_moved does.
INSERT INTO ems_message (topic_id, `partition`, `offset`, born_at, {message_columns}, producer_id, size)
SELECT %(topic_id)s, %(partition)s, %(offset)s, NOW(6), {p_message_columns}, p.producer_id, {p_body_size}
FROM (%(uids)s) d STRAIGHT_JOIN ems_outbox p FORCE INDEX (uid) ON p.topic_id = %(topic_id)s AND p.uid = d.uid

-- name: raised_offset
-- NULL, which the table rejects, unless the counter was raised just before.
IF(ROW_COUNT() = 1, LAST_INSERT_ID() + d.place, NULL)

-- name: further_offset
LAST_INSERT_ID() + d.place

-- name: placed_uid
SELECT %(uid)s AS uid, %(place)s AS place

-- name: list_partitions
SELECT `partition` FROM ems_partition WHERE topic_id = %(topic_id)s

-- name: refuse_rows
-- As rows of ems_publish that were refused. IGNORE, because otherwise the look whether a text is UTF-8 would be an error.
INSERT IGNORE INTO ems_publish (topic, body, `key`, tag, headers, uid, refused_at, error)
SELECT t.name, {p_plain_columns}, NOW(6), %(error)s
FROM (%(uids)s) d STRAIGHT_JOIN ems_outbox p FORCE INDEX (uid) ON p.topic_id = %(topic_id)s AND p.uid = d.uid JOIN ems_topic t ON t.id = p.topic_id

-- name: delete_moved
-- One look-up in the unique key for each uid: for a list a server may choose to read all rows of the topic, or the
-- whole table, and wait for rows of an open transaction.
DELETE p FROM (%(moved_uids)s) d STRAIGHT_JOIN ems_outbox p FORCE INDEX (uid) ON p.topic_id = %(topic_id)s AND p.uid = d.uid

-- name: moved_uid
SELECT %(uid)s AS uid
