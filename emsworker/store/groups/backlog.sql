-- name: count_waiting
-- Messages that were given back, and retries that nobody has claimed.
SELECT (SELECT COALESCE(SUM(c.hi - c.lo + 1), 0) FROM ems_claim c FORCE INDEX (live) WHERE c.state = 'waiting' AND c.group_id = %(group_id)s)
  + (SELECT COUNT(*) FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = %(group_id)s AND r.claim_id IS NULL)

-- name: lock_waiting
-- Those that somebody is adopting are left to him.
SELECT `partition`, lo, hi, claim_id FROM ems_claim FORCE INDEX (live) WHERE state = 'waiting' AND group_id = %(group_id)s LIMIT 500 FOR UPDATE SKIP LOCKED

-- name: delete_claim
DELETE FROM ems_claim WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo = %(lo)s AND claim_id = %(claim_id)s

-- name: lock_unclaimed
SELECT `partition`, `offset`, `offset` FROM ems_retry FORCE INDEX (due) WHERE group_id = %(group_id)s AND claim_id IS NULL LIMIT 500 FOR UPDATE SKIP LOCKED

-- name: delete_retry
DELETE FROM ems_retry WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` = %(lo)s

-- name: add_skips
INSERT INTO ems_skip (group_id, `partition`, lo, hi, reason, skipped_at) VALUES

-- name: skip_row
(%(group_id)s, %(partition)s, %(lo)s, %(hi)s, %(reason)s, NOW(6))
