-- name: open_chord
-- A chord that is applied again is a new run.
INSERT INTO ems_celery_chord (name, size, added, arrived, is_done, expires_at)
VALUES (%(key)s, NULL, 0, 0, 0, NOW(6) + INTERVAL %(ttl_s)s SECOND)
ON DUPLICATE KEY UPDATE size = NULL, added = 0, arrived = 0, is_done = 0, expires_at = VALUES(expires_at)

-- name: delete_parts
DELETE FROM ems_celery_chord_part WHERE chord = %(key)s

-- name: set_size
INSERT INTO ems_celery_chord (name, size, added, arrived, is_done, expires_at)
VALUES (%(key)s, %(size)s, 0, 0, 0, NOW(6) + INTERVAL %(ttl_s)s SECOND)
ON DUPLICATE KEY UPDATE size = VALUES(size)

-- name: add_one
INSERT INTO ems_celery_chord (name, size, added, arrived, is_done, expires_at)
VALUES (%(key)s, NULL, 1, 0, 0, NOW(6) + INTERVAL %(ttl_s)s SECOND)
ON DUPLICATE KEY UPDATE added = added + 1

-- name: count_part
-- Matches one row unless the part is the last one, or the chord is done or unknown. The time is moved rarely, because
-- an index depends on it.
UPDATE ems_celery_chord SET arrived = arrived + 1,
  expires_at = IF(expires_at < NOW(6) + INTERVAL %(ttl_s)s * 0.9 SECOND, NOW(6) + INTERVAL %(ttl_s)s SECOND, expires_at)
WHERE name = %(key)s AND is_done = 0 AND (size IS NULL OR arrived + 1 < size + added)

-- name: insert_part
INSERT INTO ems_celery_chord_part (chord, number, task_id, body) VALUES (%(key)s, %(number)s, %(task_id)s, %(body)s)

-- name: create_chord
-- For a part that arrives before the sender has counted them.
INSERT INTO ems_celery_chord (name, size, added, arrived, is_done, expires_at)
VALUES (%(key)s, NULL, 0, 0, 0, NOW(6) + INTERVAL %(ttl_s)s SECOND) ON DUPLICATE KEY UPDATE arrived = arrived

-- name: lock_chord
SELECT size + added, arrived, is_done FROM ems_celery_chord WHERE name = %(key)s FOR UPDATE

-- name: find_part
SELECT 1 FROM ems_celery_chord_part WHERE chord = %(key)s AND number = %(number)s AND task_id = %(task_id)s

-- name: set_arrived
UPDATE ems_celery_chord SET arrived = %(arrived)s WHERE name = %(key)s

-- name: size_parts
SELECT COALESCE(SUM(LENGTH(body)), 0) FROM ems_celery_chord_part WHERE chord = %(key)s

-- name: list_parts
SELECT body FROM ems_celery_chord_part WHERE chord = %(key)s ORDER BY number, task_id

-- name: finish_chord
UPDATE ems_celery_chord SET is_done = 1 WHERE name = %(key)s

-- name: find_expired
SELECT name FROM ems_celery_chord WHERE expires_at <= NOW(6) ORDER BY expires_at LIMIT %(limit)s

-- name: delete_chord
-- Its parts are deleted in the same transaction, while its row is locked.
DELETE FROM ems_celery_chord WHERE name = %(key)s AND expires_at <= NOW(6)
