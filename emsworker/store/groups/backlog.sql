-- name: count_waiting
-- Messages that were given back, and due or later retries that nobody has claimed.
SELECT (SELECT COALESCE(SUM(c.hi - c.lo + 1), 0) FROM ems_claim c FORCE INDEX (live) WHERE c.state = 'waiting' AND c.group_id = %(group_id)s)
  + (SELECT COUNT(*) FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = %(group_id)s AND r.claim_id IS NULL)

-- name: delete_waiting
DELETE FROM ems_claim WHERE state = 'waiting' AND group_id = %(group_id)s LIMIT 1000

-- name: delete_unclaimed
DELETE FROM ems_retry WHERE group_id = %(group_id)s AND claim_id IS NULL LIMIT 1000
