-- name: declare_schedule
-- A changed timetable starts again; an unchanged one keeps its next slot, so that a restart skips nothing. A pause stays.
INSERT INTO ems_schedule (name, spec, timezone, catch_up, topic, `key`, headers, body, task, tag, expires_s, next_at, next_set_at, declared_at)
VALUES (%(name)s, %(spec)s, %(timezone)s, %(catch_up)s, %(topic)s, %(key)s, %(headers)s, %(body)s, %(task)s, %(tag)s,
  %(expires_s)s, %(next_at)s, NOW(6), NOW(6))
ON DUPLICATE KEY UPDATE next_set_at = IF(spec = VALUES(spec) AND timezone = VALUES(timezone), next_set_at, NOW(6)),
  next_at = IF(spec = VALUES(spec) AND timezone = VALUES(timezone), next_at, VALUES(next_at)),
  spec = VALUES(spec), timezone = VALUES(timezone), catch_up = VALUES(catch_up), topic = VALUES(topic),
  `key` = VALUES(`key`), headers = VALUES(headers), body = VALUES(body), task = VALUES(task), tag = VALUES(tag),
  expires_s = VALUES(expires_s), declared_at = VALUES(declared_at)

-- name: list_of_users
-- Of these names, those that users have created at run time.
SELECT name FROM ems_schedule WHERE name IN %(names)s AND origin = 'user' ORDER BY name

-- name: list_schedules
-- A page by name. Names are ASCII, so a prefix is a range of the primary key.
SELECT s.name, s.spec, s.timezone, s.catch_up, t.name, s.next_at, s.last_at, s.declared_at, s.origin, s.paused, s.task, s.tag
FROM ems_schedule s LEFT JOIN ems_topic t ON t.name = s.topic
WHERE s.name > %(after)s AND s.name >= %(prefix)s AND s.name < CONCAT(%(prefix)s, '~')
  AND (%(tag)s IS NULL OR s.tag = %(tag)s) ORDER BY s.name LIMIT %(limit)s

-- name: list_of_topic
SELECT name, spec, timezone, catch_up, topic, `key`, headers, body, task, tag, expires_s, next_at, last_at, origin, paused
FROM ems_schedule WHERE topic = %(topic)s

-- name: take_over
-- The app may have declared it here already; then the earlier slot counts, since no slot may be skipped.
INSERT INTO ems_schedule (name, spec, timezone, catch_up, topic, `key`, headers, body, task, tag, expires_s, next_at, last_at,
  origin, paused, declared_at)
VALUES (%(name)s, %(spec)s, %(timezone)s, %(catch_up)s, %(topic)s, %(key)s, %(headers)s, %(body)s, %(task)s, %(tag)s,
  %(expires_s)s, %(next_at)s, %(last_at)s, %(origin)s, %(paused)s, NOW(6))
ON DUPLICATE KEY UPDATE next_at = LEAST(next_at, VALUES(next_at)), paused = VALUES(paused)

-- name: find_due
-- Those that are due, and the first that is not, with the seconds until then: by the index, however many there are. A
-- schedule whose topic is deleted waits for a topic of that name.
(SELECT s.name, COALESCE(TIMESTAMPDIFF(MICROSECOND, NOW(6), s.next_at) / 1000000, 0) FROM ems_schedule s FORCE INDEX (due)
  STRAIGHT_JOIN ems_topic t ON t.name = s.topic WHERE s.paused = 0 AND s.next_at <= NOW(6) ORDER BY s.next_at LIMIT %(limit)s)
UNION ALL
(SELECT s.name, TIMESTAMPDIFF(MICROSECOND, NOW(6), s.next_at) / 1000000 FROM ems_schedule s FORCE INDEX (due)
  STRAIGHT_JOIN ems_topic t ON t.name = s.topic WHERE s.paused = 0 AND s.next_at > NOW(6) ORDER BY s.next_at LIMIT 1)

-- name: list_future
-- Next slots that were computed while the server's clock was ahead: they are later than now.
SELECT name, spec, timezone, next_at, NOW(6) FROM ems_schedule WHERE next_set_at > NOW(6)

-- name: move_back
UPDATE ems_schedule SET next_at = %(next_at)s, next_set_at = NOW(6) WHERE name = %(name)s AND next_at = %(was)s

-- name: lock_due
-- Of two concurrent beats one locks a row; the other finds it locked or moved on. A row that a user is deleting or
-- changing is locked too, until that is committed.
SELECT name, spec, timezone, catch_up, topic, `key`, headers, body, task, tag, expires_s, next_at, NOW(6) FROM ems_schedule
WHERE name IN %(names)s AND paused = 0 AND next_at <= NOW(6) FOR UPDATE SKIP LOCKED

-- name: get_topic
SELECT id, priorities FROM ems_topic WHERE name = %(topic)s

-- name: move_on
UPDATE ems_schedule SET next_at = %(next_at)s, next_set_at = NOW(6), last_at = COALESCE(%(last_at)s, last_at) WHERE name = %(name)s

-- name: insert_slots
-- Idempotent: the uid is made of the schedule and the slot.
INSERT IGNORE INTO ems_outbox (topic_id, due_at, uid, `partition`, `key`, tag, headers, body, producer_id, created_at, level) VALUES

-- name: slot_row
(%(topic_id)s,%(due_at)s,%(uid)s,NULL,%(key)s,%(tag)s,%(headers)s,%(body)s,%(producer_id)s,NOW(6),%(level)s)

-- name: delete_schedule
DELETE FROM ems_schedule WHERE name = %(name)s

-- name: get_call
SELECT name, spec, timezone, catch_up, topic, `key`, headers, body, task, tag, expires_s, NOW(6) FROM ems_schedule
WHERE name = %(name)s
