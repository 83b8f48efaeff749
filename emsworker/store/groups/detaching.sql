-- name: claim_rows
-- Retries that are claimed before they ever failed.
INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, claim_id, `key`) VALUES

-- name: claimed_row
(%(group_id)s,%(partition)s,%(offset)s,0,NOW(6),%(claim_id)s,%(key)s)

-- name: add_claim
-- The last statement of its transaction: the fencing token of the previous claim was valid.
INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, isolation, client_id, claimed_at, progress_at, deadline_at, detached)
VALUES (%(group_id)s, %(partition)s, %(lo)s, %(claim_id)s, %(hi)s, %(acked_to)s, 'start', 'retry', 0, %(client_id)s, NOW(6), NOW(6),
  NOW(6) + INTERVAL %(timeout_s)s SECOND, 1)

-- name: mark_detached
UPDATE ems_claim SET detached = 1
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo = %(lo)s AND claim_id = %(claim_id)s AND state = 'start'
