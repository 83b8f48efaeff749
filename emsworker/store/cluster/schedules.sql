-- name: declare_schedule
-- A changed timetable starts again; an unchanged one keeps its next slot, so that a restart skips nothing.
INSERT INTO ems_schedule (name, spec, timezone, catch_up, topic, `key`, headers, body, next_at, declared_at)
VALUES (%(name)s, %(spec)s, %(timezone)s, %(catch_up)s, %(topic)s, %(key)s, %(headers)s, %(body)s, %(next_at)s, NOW(6))
ON DUPLICATE KEY UPDATE next_at = IF(spec = VALUES(spec) AND timezone = VALUES(timezone), next_at, VALUES(next_at)),
  spec = VALUES(spec), timezone = VALUES(timezone), catch_up = VALUES(catch_up), topic = VALUES(topic),
  `key` = VALUES(`key`), headers = VALUES(headers), body = VALUES(body), declared_at = VALUES(declared_at)

-- name: list_schedules
SELECT s.name, s.spec, s.timezone, s.catch_up, t.name, s.next_at, s.last_at, s.declared_at
FROM ems_schedule s LEFT JOIN ems_topic t ON t.name = s.topic ORDER BY s.name

-- name: list_of_topic
SELECT name, spec, timezone, catch_up, topic, `key`, headers, body, next_at, last_at FROM ems_schedule WHERE topic = %(topic)s

-- name: take_over
-- The app may have declared it here already; then the earlier slot counts, since no slot may be skipped.
INSERT INTO ems_schedule (name, spec, timezone, catch_up, topic, `key`, headers, body, next_at, last_at, declared_at)
VALUES (%(name)s, %(spec)s, %(timezone)s, %(catch_up)s, %(topic)s, %(key)s, %(headers)s, %(body)s, %(next_at)s, %(last_at)s, NOW(6))
ON DUPLICATE KEY UPDATE next_at = LEAST(next_at, VALUES(next_at))

-- name: find_next
-- The next schedules, and the seconds until then; a schedule whose topic is deleted waits for a topic of that name.
SELECT s.name, COALESCE(TIMESTAMPDIFF(MICROSECOND, NOW(6), s.next_at) / 1000000, 0) FROM ems_schedule s
JOIN ems_topic t ON t.name = s.topic ORDER BY s.next_at LIMIT 1000

-- name: list_future
SELECT name, spec, timezone, next_at, NOW(6) FROM ems_schedule WHERE next_at > NOW(6) + INTERVAL 1 MINUTE

-- name: move_back
UPDATE ems_schedule SET next_at = %(next_at)s WHERE name = %(name)s AND next_at = %(was)s

-- name: lock_due
-- Of two concurrent beats one locks the row; the other finds it locked or moved on.
SELECT spec, timezone, catch_up, topic, `key`, headers, body, next_at, NOW(6) FROM ems_schedule
WHERE name = %(name)s AND next_at <= NOW(6) FOR UPDATE SKIP LOCKED

-- name: get_topic
SELECT id, priorities FROM ems_topic WHERE name = %(topic)s

-- name: move_on
UPDATE ems_schedule SET next_at = %(next_at)s, last_at = COALESCE(%(last_at)s, last_at) WHERE name = %(name)s

-- name: insert_slots
-- Idempotent: the uid is made of the schedule and the slot.
INSERT IGNORE INTO ems_outbox (topic_id, due_at, uid, `partition`, `key`, tag, headers, body, producer_id, created_at, level) VALUES

-- name: slot_row
(%(topic_id)s,%(due_at)s,%(uid)s,NULL,%(key)s,NULL,%(headers)s,%(body)s,%(producer_id)s,NOW(6),%(level)s)

-- name: delete_schedule
DELETE FROM ems_schedule WHERE name = %(name)s

-- name: get_call
SELECT t.id, t.priorities, s.`key`, s.headers, s.body, NOW(6) FROM ems_schedule s JOIN ems_topic t ON t.name = s.topic
WHERE s.name = %(name)s
