-- name: lock_turn
-- In a group that runs keys in order, every transaction that blocks or promotes messages locks the partition's cursor
-- row.
SELECT next_offset INTO @ems_turn FROM ems_cursor WHERE group_id = %(group_id)s AND `partition` = %(partition)s FOR UPDATE

-- name: block
-- A due time in the year 9999 means that the message waits for an earlier one of its key.
INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, `key`) VALUES

-- name: blocked_row
(%(group_id)s,%(partition)s,%(offset)s,0,IF(%(key)s IS NULL,NOW(6),'9999-12-31'),%(key)s)

-- name: release_blocked
-- The messages of a claim of retries have rows already.
UPDATE ems_retry SET claim_id = NULL WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s

-- name: promote
-- Makes the first row of a key due now, unless it has a due time of its own.
UPDATE ems_retry FORCE INDEX (lane) SET due_at = IF(due_at > '9999-01-01', NOW(6), due_at)
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `key` = %(key)s
ORDER BY group_id, `partition`, `key`, `offset` LIMIT 1
