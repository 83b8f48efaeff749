-- name: insert_done
-- Runs inside a caller's transaction. Another transaction with the same key waits here until this one has ended.
INSERT IGNORE INTO ems_once (effect, state, token, until_at, expires_at)
VALUES (%(key)s, 'done', %(token)s, NOW(6), NOW(6) + INTERVAL %(ttl_s)s SECOND)

-- name: insert_begun
-- The attempt that inserts the row may go ahead.
INSERT IGNORE INTO ems_once (effect, state, token, until_at, expires_at)
VALUES (%(key)s, 'begun', %(token)s, NOW(6) + INTERVAL %(running_s)s SECOND, NOW(6) + INTERVAL %(ttl_s)s SECOND)

-- name: get_state
SELECT state, COALESCE(TIMESTAMPDIFF(MICROSECOND, NOW(6), until_at) / 1000000, 0), token FROM ems_once WHERE effect = %(key)s

-- name: take_over
-- Take over from an attempt that did not end in time; its token is void from then on.
UPDATE ems_once SET token = %(token)s, until_at = NOW(6) + INTERVAL %(running_s)s SECOND,
  expires_at = NOW(6) + INTERVAL %(ttl_s)s SECOND
WHERE effect = %(key)s AND state = 'begun' AND token = %(was)s AND until_at <= NOW(6)

-- name: finish
UPDATE ems_once SET state = 'done', expires_at = NOW(6) + INTERVAL %(ttl_s)s SECOND
WHERE effect = %(key)s AND token = %(token)s

-- name: cancel
DELETE FROM ems_once WHERE effect = %(key)s AND token = %(token)s AND state = 'begun'

-- name: delete_expired
DELETE FROM ems_once WHERE expires_at <= NOW(6) ORDER BY expires_at LIMIT %(limit)s
