-- name: list_dead
SELECT `offset` FROM ems_dead WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s

-- name: list_taken
-- Live offsets of a range, as ranges. One statement, so one snapshot: a message moves between claims and retries in
-- transactions, and is seen in one of them. Live claims never overlap, so at most one of each state that begins before
-- the range can reach into it.
(SELECT acked_to + 1, hi FROM ems_claim FORCE INDEX (live) WHERE state = 'start' AND group_id = %(group_id)s
  AND `partition` = %(partition)s AND lo >= %(start)s AND lo < %(end)s AND source = 'stream')
UNION ALL
(SELECT acked_to + 1, hi FROM ems_claim FORCE INDEX (live) WHERE state = 'waiting' AND group_id = %(group_id)s
  AND `partition` = %(partition)s AND lo >= %(start)s AND lo < %(end)s)
UNION ALL
(SELECT acked_to + 1, hi FROM ems_claim FORCE INDEX (live) WHERE state = 'start' AND group_id = %(group_id)s
  AND `partition` = %(partition)s AND lo < %(start)s AND source = 'stream'
  ORDER BY state DESC, group_id DESC, `partition` DESC, lo DESC LIMIT 1)
UNION ALL
(SELECT acked_to + 1, hi FROM ems_claim FORCE INDEX (live) WHERE state = 'waiting' AND group_id = %(group_id)s
  AND `partition` = %(partition)s AND lo < %(start)s
  ORDER BY state DESC, group_id DESC, `partition` DESC, lo DESC LIMIT 1)
UNION ALL
(SELECT `offset`, `offset` FROM ems_retry FORCE INDEX (PRIMARY) WHERE group_id = %(group_id)s AND `partition` = %(partition)s
  AND `offset` >= %(start)s AND `offset` < %(end)s)

-- name: get_cursor
SELECT next_offset FROM ems_cursor WHERE group_id = %(group_id)s AND `partition` = %(partition)s

-- name: add_waiting
INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, isolation, client_id, claimed_at, progress_at, deadline_at) VALUES

-- name: waiting_row
(%(group_id)s,%(partition)s,%(lo)s,%(claim_id)s,%(hi)s,%(lo)s - 1,'waiting','stream',0,NULL,NOW(6),NOW(6),NOW(6))

-- name: add_retries
-- No attempt made, due now.
INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at) VALUES

-- name: retry_row
(%(group_id)s,%(partition)s,%(offset)s,0,NOW(6))

-- name: delete_dead
DELETE FROM ems_dead WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s
