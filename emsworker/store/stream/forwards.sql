-- name: find_waiting
SELECT t.id, t.name, g.last_move FROM ems_topic t JOIN ems_topic_guard g ON g.topic_id = t.id WHERE t.server = %(server)s
AND EXISTS (SELECT 1 FROM ems_outbox p FORCE INDEX (PRIMARY) WHERE p.topic_id = t.id)

-- name: find_kept
-- One statement, so one snapshot: a later move changes the number.
SELECT t.id, t.former, g.last_move FROM ems_topic t JOIN ems_topic_guard g ON g.topic_id = t.id
WHERE t.name = %(topic)s AND t.server IS NULL

-- name: is_any_waiting
SELECT 1 FROM ems_outbox FORCE INDEX (PRIMARY) WHERE topic_id = %(topic_id)s LIMIT 1

-- name: read_first
-- Without locks: what two processes read at once is accepted once. At least one message, and as many as fit into
-- `most_bytes` of headers and bodies.
SELECT p.`partition`, p.producer_id, p.level, COALESCE(TIMESTAMPDIFF(MICROSECOND, NOW(6), p.due_at) / 1000000, 0), {p_message_columns}
FROM (SELECT f.uid, ROW_NUMBER() OVER (ORDER BY f.due_at, f.uid) AS place,
    SUM(f.total_size) OVER (ORDER BY f.due_at, f.uid ROWS UNBOUNDED PRECEDING) AS bytes
  FROM (SELECT uid, due_at, total_size FROM ems_outbox FORCE INDEX (PRIMARY)
    WHERE topic_id = %(topic_id)s ORDER BY due_at, uid LIMIT %(limit)s) f
) d STRAIGHT_JOIN ems_outbox p FORCE INDEX (uid) ON p.topic_id = %(topic_id)s AND p.uid = d.uid
WHERE d.bytes <= %(most_bytes)s OR d.place = 1 ORDER BY d.place

-- name: list_waiting
SELECT uid FROM ems_outbox FORCE INDEX (PRIMARY) WHERE topic_id = %(topic_id)s

-- name: forget
DELETE FROM ems_dedup WHERE topic_id = %(topic_id)s AND `key` IN %(keys)s

-- name: find_accepted
SELECT `key` FROM ems_dedup WHERE topic_id = %(topic_id)s AND `key` IN %(keys)s

-- name: remember
-- Fails with a duplicate key if the message was accepted meanwhile; then nothing of the transaction is kept.
INSERT INTO ems_dedup (topic_id, `key`, uid, expires_at, look_at) VALUES

-- name: remembered_row
(%(topic_id)s,%(key)s,%(uid)s,NOW(6) + INTERVAL %(remembered_s)s SECOND,NOW(6) + INTERVAL %(remembered_s)s SECOND)
