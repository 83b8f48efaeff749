-- name: get_time
-- In UTC, whatever the time zone of the connection is: these statements also run in a transaction of the caller's.
SELECT UTC_TIMESTAMP(6)

-- name: put_schedule
-- An insert first, and no look before it: a lock on a name that is not there yet would keep others from adding theirs.
-- A schedule that an app has declared in its code stays as it is.
INSERT INTO %(database)s.ems_schedule (name, spec, timezone, catch_up, topic, `key`, headers, body, task, tag, expires_s, next_at,
  next_set_at, declared_at, origin)
VALUES (%(name)s, %(spec)s, %(timezone)s, %(catch_up)s, %(topic)s, %(key)s, %(headers)s, %(body)s, %(task)s, %(tag)s,
  %(expires_s)s, %(next_at)s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6), 'user')
ON DUPLICATE KEY UPDATE
  next_set_at = IF(origin <> 'user' OR (spec = VALUES(spec) AND timezone = VALUES(timezone)), next_set_at, VALUES(next_set_at)),
  next_at = IF(origin <> 'user' OR (spec = VALUES(spec) AND timezone = VALUES(timezone)), next_at, VALUES(next_at)),
  spec = IF(origin = 'user', VALUES(spec), spec), timezone = IF(origin = 'user', VALUES(timezone), timezone),
  catch_up = IF(origin = 'user', VALUES(catch_up), catch_up), topic = IF(origin = 'user', VALUES(topic), topic),
  `key` = IF(origin = 'user', VALUES(`key`), `key`), headers = IF(origin = 'user', VALUES(headers), headers),
  body = IF(origin = 'user', VALUES(body), body), task = IF(origin = 'user', VALUES(task), task),
  tag = IF(origin = 'user', VALUES(tag), tag), expires_s = IF(origin = 'user', VALUES(expires_s), expires_s),
  declared_at = IF(origin = 'user', VALUES(declared_at), declared_at)

-- name: lock_schedule
-- A beat that fires it just now is waited for; one that comes later passes the row over until the commit.
SELECT name, spec, timezone, catch_up, topic, `key`, headers, body, task, tag, expires_s, next_at, last_at, declared_at, origin,
  paused, UTC_TIMESTAMP(6) FROM %(database)s.ems_schedule WHERE name = %(name)s FOR UPDATE

-- name: pause_schedule
UPDATE %(database)s.ems_schedule SET paused = 1 WHERE name = %(name)s

-- name: resume_schedule
UPDATE %(database)s.ems_schedule SET paused = 0, next_at = %(next_at)s, next_set_at = UTC_TIMESTAMP(6) WHERE name = %(name)s

-- name: delete_schedule
DELETE FROM %(database)s.ems_schedule WHERE name = %(name)s

-- name: find_handlers
-- The groups that run a task, as the workers that started last have told.
SELECT t.name, g.name FROM ems_handler h JOIN ems_group g ON g.id = h.group_id JOIN ems_topic t ON t.id = g.topic_id
WHERE h.name = %(task)s ORDER BY t.name, g.name
