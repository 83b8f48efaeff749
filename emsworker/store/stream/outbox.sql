-- name: insert_outbox
-- It runs on a connection of any driver: its rows hold only numbers and hexadecimal literals. The database is named,
-- because a caller's connection may use another one. The columns are not: for ON DUPLICATE KEY UPDATE, MariaDB requires
-- the right to change each column that is named, and a producer must not be able to rewrite what waits. So the rows
-- have all columns in the order of the table, and a new column of the table has to be INVISIBLE.
INSERT INTO %(database)s.ems_outbox VALUES

-- name: delayed_row
-- A microsecond more in each row keeps the rows in order.
(%(topic_id)s,UTC_TIMESTAMP(6) + INTERVAL %(delay_us)s MICROSECOND,%(partition)s,%(message)s,UTC_TIMESTAMP(6),%(level)s)

-- name: timed_row
(%(topic_id)s,%(due_at)s + INTERVAL %(number)s MICROSECOND,%(partition)s,%(message)s,UTC_TIMESTAMP(6),%(level)s)

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
SELECT `partition`, producer_id, level, {message_columns} FROM ems_outbox FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND due_at <= NOW(6) - INTERVAL %(late_us)s MICROSECOND ORDER BY due_at, uid LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- name: delete_moved
-- One look-up in the unique key for each uid: for a list a server may choose to read all rows of the topic, or the
-- whole table, and wait for rows of an open transaction.
DELETE p FROM (%(moved_uids)s) d STRAIGHT_JOIN ems_outbox p FORCE INDEX (uid) ON p.topic_id = %(topic_id)s AND p.uid = d.uid

-- name: moved_uid
SELECT %(uid)s AS uid
