-- name: take
-- The last process that takes a name has it: after kill -9 nobody gives it back. The partition's row is share-locked
-- before (hold_partition), as retention locks it before it reads the holds.
INSERT INTO ems_hold (topic_id, name, `partition`, held_from, next_offset, reader, limit_s, begun_at, renewed_at, expires_at)
VALUES (%(topic_id)s, %(name)s, %(partition)s, %(held_from)s, %(next_offset)s, %(reader)s, %(limit_s)s, NOW(6), NOW(6), NOW(6) + INTERVAL %(limit_s)s SECOND)
ON DUPLICATE KEY UPDATE held_from = VALUES(held_from), next_offset = VALUES(next_offset), reader = VALUES(reader), limit_s = VALUES(limit_s),
  renewed_at = VALUES(renewed_at), expires_at = VALUES(expires_at), lost_at = NULL

-- name: renew
-- Only for the process that took the name last, and only while the hold is in force. It never goes back.
UPDATE ems_hold SET held_from = GREATEST(held_from, %(held_from)s), next_offset = GREATEST(next_offset, %(next_offset)s),
  renewed_at = NOW(6), expires_at = NOW(6) + INTERVAL %(limit_s)s SECOND
WHERE topic_id = %(topic_id)s AND name = %(name)s AND `partition` = %(partition)s AND reader = %(reader)s AND lost_at IS NULL

-- name: get_reader
SELECT reader FROM ems_hold WHERE topic_id = %(topic_id)s AND name = %(name)s AND `partition` = %(partition)s

-- name: list_holds
-- Every hold, or those of one topic, with the present end of its partition, which index dives find.
SELECT t.name, h.name, h.`partition`, h.held_from, h.next_offset,
  GREATEST(p.log_start, COALESCE((SELECT m.`offset` FROM ems_message m WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0) + 1),
  h.renewed_at, h.expires_at, h.lost_at, COALESCE(TIMESTAMPDIFF(MICROSECOND, h.renewed_at, NOW(6)) / 1000000, 0), COALESCE(TIMESTAMPDIFF(MICROSECOND, NOW(6), h.expires_at) / 1000000, 0)
FROM ems_hold h JOIN ems_topic t ON t.id = h.topic_id JOIN ems_partition p ON p.topic_id = h.topic_id AND p.`partition` = h.`partition`
WHERE %(topic)s IS NULL OR t.name = %(topic)s ORDER BY t.name, h.name, h.`partition`

-- name: list_ends
-- The present end of each partition, as list_holds finds it.
SELECT p.`partition`, GREATEST(p.log_start, COALESCE((SELECT m.`offset` FROM ems_message m WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0) + 1)
FROM ems_partition p WHERE p.topic_id = %(topic_id)s

-- name: release
DELETE FROM ems_hold WHERE topic_id = %(topic_id)s AND name = %(name)s

-- name: list_expired
SELECT t.name, h.topic_id, h.name, h.`partition`, h.held_from, h.limit_s FROM ems_hold h JOIN ems_topic t ON t.id = h.topic_id
WHERE h.lost_at IS NULL AND h.expires_at <= NOW(6) ORDER BY h.topic_id, h.name, h.`partition`

-- name: mark_lost
-- A renewal in between wins.
UPDATE ems_hold SET lost_at = NOW(6)
WHERE topic_id = %(topic_id)s AND name = %(name)s AND `partition` = %(partition)s AND lost_at IS NULL AND expires_at <= NOW(6)

-- name: delete_lost
DELETE FROM ems_hold WHERE lost_at <= NOW(6) - INTERVAL %(age_s)s SECOND LIMIT 1000
