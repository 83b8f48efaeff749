-- name: forget
SET @ems_per_s = NULL, @ems_most = NULL, @ems_tokens = NULL, @ems_others = 0

-- name: lock_limit
-- Every client that is to start messages of a limited group locks this row while it counts, so that one counts at a
-- time.
SELECT per_s, max_running INTO @ems_per_s, @ems_most FROM ems_limit WHERE group_id = %(group_id)s FOR UPDATE

-- name: refill
-- By the server's clock. The time of this statement may be earlier than that of a statement for which it waited; a time
-- that is later by more than a minute was written while the clock was ahead.
UPDATE ems_limit SET
  tokens = LEAST(capacity, tokens + %(refund)s + per_s * GREATEST(0, TIMESTAMPDIFF(MICROSECOND, filled_at, NOW(6))) / 1000000),
  filled_at = IF(filled_at > NOW(6) + INTERVAL 1 MINUTE, NOW(6), GREATEST(filled_at, NOW(6)))
WHERE group_id = %(group_id)s AND per_s IS NOT NULL

-- name: read_tokens
SELECT tokens INTO @ems_tokens FROM ems_limit WHERE group_id = %(group_id)s AND per_s IS NOT NULL

-- name: count_others
-- A slot whose client has no valid lease is free.
SELECT COALESCE(SUM(s.weight), 0) INTO @ems_others FROM ems_slot s JOIN ems_client c ON c.client_id = s.client_id AND c.expires_at > NOW(6)
WHERE s.group_id = %(group_id)s AND s.client_id <> %(client_id)s

-- name: grant
-- A client that runs messages one after another takes one slot for any claim; one that runs them concurrently takes one
-- per message.
SET @ems_granted = GREATEST(0, LEAST(%(wanted)s, IF(@ems_tokens IS NULL, %(wanted)s, FLOOR(@ems_tokens)),
  CASE WHEN @ems_most IS NULL THEN %(wanted)s WHEN %(at_once)s = 1 THEN @ems_most - @ems_others
    WHEN @ems_most > @ems_others THEN %(wanted)s ELSE 0 END))

-- name: spend
UPDATE ems_limit SET tokens = tokens - @ems_granted WHERE group_id = %(group_id)s AND per_s IS NOT NULL AND @ems_granted > 0

-- name: take_slot
INSERT INTO ems_slot (group_id, client_id, weight)
SELECT %(group_id)s, %(client_id)s, IF(%(at_once)s = 1, @ems_granted, 1) FROM DUAL WHERE @ems_most IS NOT NULL AND @ems_granted > 0
ON DUPLICATE KEY UPDATE weight = VALUES(weight)

-- name: drop_slot_unless_granted
DELETE FROM ems_slot WHERE group_id = %(group_id)s AND client_id = %(client_id)s AND (@ems_granted = 0 OR @ems_most IS NULL)

-- name: get_granted
SELECT @ems_granted, @ems_per_s, @ems_tokens, (SELECT capacity FROM ems_limit WHERE group_id = %(group_id)s)

-- name: release
DELETE FROM ems_slot WHERE group_id = %(group_id)s AND client_id = %(client_id)s

-- name: declare_limit
-- An app's declaration never overwrites limits that are already stored.
INSERT INTO ems_limit (group_id, rate, max_running, max_running_per_key, per_s, capacity, tokens, filled_at)
VALUES (%(group_id)s, %(rate)s, %(max_running)s, %(max_running_per_key)s, %(per_s)s, %(capacity)s, 0, NOW(6))
ON DUPLICATE KEY UPDATE group_id = group_id

-- name: set_limit
INSERT INTO ems_limit (group_id, rate, max_running, max_running_per_key, per_s, capacity, tokens, filled_at)
VALUES (%(group_id)s, %(rate)s, %(max_running)s, %(max_running_per_key)s, %(per_s)s, %(capacity)s, 0, NOW(6))
ON DUPLICATE KEY UPDATE rate = VALUES(rate), max_running = VALUES(max_running),
  max_running_per_key = VALUES(max_running_per_key), per_s = VALUES(per_s), capacity = VALUES(capacity),
  tokens = LEAST(tokens, VALUES(capacity))

-- name: get_limit
SELECT rate, max_running, max_running_per_key FROM ems_limit WHERE group_id = %(group_id)s

-- name: count_slots
SELECT COALESCE(SUM(s.weight), 0) FROM ems_slot s JOIN ems_client c ON c.client_id = s.client_id AND c.expires_at > NOW(6)
WHERE s.group_id = %(group_id)s

-- name: delete_limit
DELETE FROM ems_limit WHERE group_id = %(group_id)s

-- name: delete_slots
DELETE FROM ems_slot WHERE group_id = %(group_id)s

-- name: sweep_slots
-- Slots of clients that are gone. The table is as small as the number of busy threads.
DELETE FROM ems_slot WHERE NOT EXISTS (SELECT 1 FROM ems_client c WHERE c.client_id = ems_slot.client_id)
LIMIT %(limit)s
