-- name: hold_key
-- A second producer waits here until the first has committed or rolled back, and finds its uid.
INSERT INTO %(database)s.ems_dedup (topic_id, `key`, uid, expires_at, look_at)
VALUES (%(guarded_topic_id)s,%(key)s,%(uid)s,UTC_TIMESTAMP(6) + INTERVAL %(window_us)s MICROSECOND,UTC_TIMESTAMP(6) + INTERVAL %(window_us)s MICROSECOND)
ON DUPLICATE KEY UPDATE topic_id = VALUES(topic_id)

-- name: read_key
-- A locking read, because the caller's snapshot may be older than the row.
SELECT uid, expires_at > UTC_TIMESTAMP(6) FROM %(database)s.ems_dedup WHERE topic_id = %(topic_id)s AND `key` = %(key)s FOR UPDATE

-- name: find_keys
SELECT `key`, uid, expires_at > NOW(6) FROM ems_dedup WHERE topic_id = %(topic_id)s AND `key` IN %(keys)s

-- name: renew_key
UPDATE %(database)s.ems_dedup SET uid = %(uid)s, expires_at = UTC_TIMESTAMP(6) + INTERVAL %(window_us)s MICROSECOND,
  look_at = UTC_TIMESTAMP(6) + INTERVAL %(window_us)s MICROSECOND WHERE topic_id = %(topic_id)s AND `key` = %(key)s

-- name: find_outbox
SELECT 1 FROM ems_outbox WHERE topic_id = %(topic_id)s AND uid = %(uid)s

-- name: find_place
SELECT `partition`, `offset` FROM ems_message WHERE topic_id = %(topic_id)s AND uid = %(uid)s AND kind = 'message'

-- name: is_unfinished
-- True if some group has not finished a message (unread, claimed, or waiting for a retry), or if there is no group yet.
SELECT NOT EXISTS (SELECT 1 FROM ems_group g WHERE g.topic_id = %(topic_id)s)
OR EXISTS (SELECT 1 FROM ems_group g JOIN ems_cursor c ON c.group_id = g.id
  WHERE g.topic_id = %(topic_id)s AND c.`partition` = %(partition)s AND c.next_offset <= %(offset)s)
OR EXISTS (SELECT 1 FROM ems_group g JOIN ems_claim c FORCE INDEX (live) ON c.group_id = g.id AND c.state IN ('start', 'waiting')
  WHERE g.topic_id = %(topic_id)s AND c.source = 'stream' AND c.`partition` = %(partition)s
  AND c.lo <= %(offset)s AND c.hi >= %(offset)s AND c.acked_to < %(offset)s)
OR EXISTS (SELECT 1 FROM ems_group g JOIN ems_retry r ON r.group_id = g.id
  WHERE g.topic_id = %(topic_id)s AND r.`partition` = %(partition)s AND r.`offset` = %(offset)s)

-- name: list_expired
SELECT topic_id, `key`, uid FROM ems_dedup FORCE INDEX (look) WHERE look_at <= NOW(6) ORDER BY look_at LIMIT %(limit)s

-- name: delete_expired
-- Unless it was renewed meanwhile.
DELETE FROM ems_dedup WHERE topic_id = %(topic_id)s AND `key` = %(key)s AND uid = %(uid)s AND expires_at <= NOW(6)

-- name: look_later
UPDATE ems_dedup SET look_at = NOW(6) + INTERVAL %(later_s)s SECOND WHERE topic_id = %(topic_id)s AND `key` = %(key)s AND uid = %(uid)s

-- name: find_last
-- One dive, but for the ids of messages that other servers have forwarded: those are no keys of senders.
SELECT t.name, d.look_at FROM ems_dedup d FORCE INDEX (look) JOIN ems_topic t ON t.id = d.topic_id
WHERE d.look_at > NOW(6) AND LEFT(d.`key`, 11) <> %(forwarded)s ORDER BY d.look_at DESC LIMIT 1
