-- name: lock_cursor
-- Every claim of new messages locks this row first: while it is locked, there is no new claim.
SELECT next_offset FROM ems_cursor WHERE group_id = %(group_id)s AND `partition` = %(partition)s FOR UPDATE

-- name: get_log_start
-- Shared, so that retention does not raise it before our commit.
SELECT log_start FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s LOCK IN SHARE MODE

-- name: set_cursor
UPDATE ems_cursor SET next_offset = %(next_offset)s WHERE group_id = %(group_id)s AND `partition` = %(partition)s

-- name: skip_cursor
-- Moves forward over offsets that the group will not run, and counts them.
UPDATE ems_cursor SET skipped = skipped + %(next_offset)s - next_offset, next_offset = %(next_offset)s
WHERE group_id = %(group_id)s AND `partition` = %(partition)s

-- name: add_skip
INSERT INTO ems_skip (group_id, `partition`, lo, hi, reason, skipped_at) VALUES (%(group_id)s, %(partition)s, %(lo)s, %(hi)s, %(reason)s, NOW(6))

-- name: list_positions
-- Each partition with its log start offset, the offset after its last row, and the group's cursor.
SELECT c.`partition`, p.log_start, GREATEST(p.log_start, COALESCE((SELECT m.`offset` + 1 FROM ems_message m FORCE INDEX (PRIMARY)
  WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
  ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), p.log_start)), c.next_offset
FROM ems_cursor c JOIN ems_partition p ON p.topic_id = %(topic_id)s AND p.`partition` = c.`partition`
WHERE c.group_id = %(group_id)s ORDER BY c.`partition`

-- name: get_born_from
-- The first message at or after an offset, and whether it was created before a time.
SELECT `offset`, born_at < %(born_at)s FROM ems_message
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(offset)s ORDER BY `offset` LIMIT 1

-- name: list_live_behind
-- Live claims of the stream that reach an offset, locked: an owner's next flush waits, and finds the claim gone.
SELECT lo, claim_id, acked_to, isolation FROM ems_claim FORCE INDEX (live)
WHERE state IN ('start', 'waiting') AND group_id = %(group_id)s AND `partition` = %(partition)s AND source = 'stream' AND hi >= %(offset)s FOR UPDATE

-- name: delete_claim
DELETE FROM ems_claim WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo = %(lo)s AND claim_id = %(claim_id)s

-- name: add_claim
INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, isolation, client_id, claimed_at, progress_at, deadline_at)
VALUES (%(group_id)s, %(partition)s, %(lo)s, %(claim_id)s, %(hi)s, %(acked_to)s, %(state)s, 'stream', %(isolation)s, NULL, NOW(6), NOW(6), NOW(6))

-- name: list_retry_claims_behind
-- Locks unclaimed retries too: this waits for a client that is just claiming one, and then sees its claim.
SELECT claim_id FROM ems_retry WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` >= %(offset)s FOR UPDATE

-- name: delete_retry_claims
DELETE FROM ems_claim WHERE state = 'start' AND group_id = %(group_id)s AND `partition` = %(partition)s AND claim_id IN %(claim_ids)s

-- name: release_retries
UPDATE ems_retry SET claim_id = NULL WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND claim_id IN %(claim_ids)s

-- name: delete_retries_behind
DELETE FROM ems_retry WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` >= %(offset)s

-- name: delete_dead_behind
-- A message that is delivered again is no longer dead. One that was cancelled since is not delivered, and stays dead.
DELETE d FROM ems_dead d JOIN ems_message m ON m.topic_id = %(topic_id)s AND m.`partition` = d.`partition` AND m.`offset` = d.`offset`
AND m.kind = 'message' WHERE d.group_id = %(group_id)s AND d.`partition` = %(partition)s AND d.`offset` >= %(offset)s
