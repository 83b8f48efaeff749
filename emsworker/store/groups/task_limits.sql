-- name: list_limits
SELECT task, rate, max_running FROM ems_task_limit WHERE group_id = %(group_id)s

-- name: upsert_limit
-- What is saved up, and what waits, stays.
INSERT INTO ems_task_limit (group_id, task, rate, max_running, per_s, capacity, tokens, filled_at, new_until, back_until)
VALUES (%(group_id)s, %(task)s, %(rate)s, %(max_running)s, %(per_s)s, %(capacity)s, 0, NOW(6), NOW(6), NOW(6))
ON DUPLICATE KEY UPDATE rate = VALUES(rate), max_running = VALUES(max_running), per_s = VALUES(per_s), capacity = VALUES(capacity)

-- name: delete_limit
DELETE FROM ems_task_limit WHERE group_id = %(group_id)s AND task = %(task)s

-- name: delete_limits
DELETE FROM ems_task_limit WHERE group_id = %(group_id)s

-- name: delete_slots
DELETE FROM ems_task_slot WHERE group_id = %(group_id)s

-- name: forget
SET @ems_per_s = NULL, @ems_most = NULL, @ems_tokens = NULL, @ems_until = NOW(6), @ems_queued = 0, @ems_others = 0, @ems_waits = 0

-- name: lock_limit
-- Every client that is to start messages of the task locks this row while it counts, so that one counts at a time.
SELECT per_s, max_running, queued INTO @ems_per_s, @ems_most, @ems_queued FROM ems_task_limit
WHERE group_id = %(group_id)s AND task = %(task)s FOR UPDATE

-- name: refill
-- As limits.sql does it for groups.
UPDATE ems_task_limit SET
  tokens = LEAST(capacity, tokens + per_s * GREATEST(0, TIMESTAMPDIFF(MICROSECOND, filled_at, NOW(6))) / 1000000),
  filled_at = IF(filled_at > NOW(6) + INTERVAL 1 MINUTE, NOW(6), GREATEST(filled_at, NOW(6)))
WHERE group_id = %(group_id)s AND task = %(task)s AND per_s IS NOT NULL

-- name: read_tokens
-- What comes new gets no permit while messages wait for theirs.
SELECT IF(%(is_back)s = 0 AND new_until > NOW(6), 0, tokens), GREATEST(NOW(6), IF(%(is_back)s = 1, back_until, new_until))
INTO @ems_tokens, @ems_until FROM ems_task_limit WHERE group_id = %(group_id)s AND task = %(task)s AND per_s IS NOT NULL

-- name: count_others
-- A slot whose client has no valid lease is free.
SELECT COALESCE(SUM(s.weight), 0) INTO @ems_others FROM ems_task_slot s JOIN ems_client c ON c.client_id = s.client_id AND c.expires_at > NOW(6)
WHERE @ems_most IS NOT NULL AND s.group_id = %(group_id)s AND s.task = %(task)s AND s.client_id <> %(client_id)s

-- name: find_queue
-- What comes new gets no place while messages wait for theirs.
SET @ems_waits = @ems_most IS NOT NULL AND %(is_back)s = 0 AND EXISTS (SELECT 1 FROM ems_retry FORCE INDEX (due)
  WHERE group_id = %(group_id)s AND claim_id IS NULL AND due_at >= %(first)s AND due_at < %(beyond)s)

-- name: count_places
SET @ems_places = CASE WHEN @ems_most IS NULL THEN %(wanted)s WHEN @ems_waits = 1 THEN 0
  WHEN %(at_once)s = 1 THEN LEAST(%(wanted)s, GREATEST(0, @ems_most - @ems_others)) WHEN @ems_most > @ems_others THEN %(wanted)s ELSE 0 END

-- name: grant
SET @ems_granted = LEAST(@ems_places, IF(@ems_tokens IS NULL, %(wanted)s, FLOOR(@ems_tokens)))

-- name: spend
-- The other messages wait for a place, if there are too few, or else for their time.
UPDATE ems_task_limit SET
  tokens = IF(per_s IS NULL, tokens, tokens - @ems_granted),
  queued = queued + IF(@ems_places < %(wanted)s, %(wanted)s - @ems_granted, 0),
  new_until = IF(%(is_back)s = 0 AND per_s IS NOT NULL AND @ems_places = %(wanted)s AND @ems_granted < %(wanted)s,
    @ems_until + INTERVAL CEIL((%(wanted)s - @ems_granted) / per_s * 1000000) MICROSECOND, new_until),
  back_until = IF(%(is_back)s = 1 AND per_s IS NOT NULL AND @ems_places = %(wanted)s AND @ems_granted < %(wanted)s,
    @ems_until + INTERVAL CEIL((%(wanted)s - @ems_granted) / per_s * 1000000) MICROSECOND, back_until)
WHERE group_id = %(group_id)s AND task = %(task)s

-- name: take_slot
INSERT INTO ems_task_slot (group_id, task, client_id, weight)
SELECT %(group_id)s, %(task)s, %(client_id)s, IF(%(at_once)s = 1, @ems_granted, 1) FROM DUAL WHERE @ems_most IS NOT NULL AND @ems_granted > 0
ON DUPLICATE KEY UPDATE weight = VALUES(weight)

-- name: get_granted
SELECT @ems_granted, @ems_places, @ems_queued, @ems_until, @ems_per_s, @ems_most

-- name: refund
-- Permits of messages that were not started after all, and times of those that were not put aside: their claim was given
-- back before it came to them.
UPDATE ems_task_limit SET
  tokens = LEAST(capacity, tokens + %(unstarted)s),
  new_until = IF(%(is_back)s = 0, new_until - INTERVAL FLOOR(%(unwritten)s / per_s * 1000000) MICROSECOND, new_until),
  back_until = IF(%(is_back)s = 1, back_until - INTERVAL FLOOR(%(unwritten)s / per_s * 1000000) MICROSECOND, back_until)
WHERE group_id = %(group_id)s AND task = %(task)s AND per_s IS NOT NULL

-- name: release
DELETE FROM ems_task_slot WHERE group_id = %(group_id)s AND task = %(task)s AND client_id = %(client_id)s

-- name: wake
-- The next of the messages that wait for a place of their task: a range of the index.
UPDATE ems_retry FORCE INDEX (due) SET due_at = NOW(6)
WHERE group_id = %(group_id)s AND claim_id IS NULL AND due_at >= %(first)s AND due_at < %(beyond)s ORDER BY due_at LIMIT %(limit)s

-- name: upsert_postponed
-- No attempt is charged. The retries of the claim have rows already.
INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, last_error) VALUES

-- name: postponed_row
(%(group_id)s,%(partition)s,%(offset)s,%(attempt)s,%(due_at)s,%(error)s)

-- name: upsert_postponed_end
ON DUPLICATE KEY UPDATE attempt = VALUES(attempt), due_at = VALUES(due_at), last_error = VALUES(last_error), claim_id = NULL

-- name: sweep_slots
DELETE FROM ems_task_slot WHERE client_id NOT IN (SELECT client_id FROM ems_client)

-- name: list_free
-- The places of tasks that nobody has; of tasks without a limit of places any number.
SELECT l.group_id, l.task, COALESCE(CAST(l.max_running AS SIGNED) - COALESCE((SELECT SUM(s.weight) FROM ems_task_slot s
  JOIN ems_client c ON c.client_id = s.client_id AND c.expires_at > NOW(6) WHERE s.group_id = l.group_id AND s.task = l.task), 0), %(most)s)
FROM ems_task_limit l
