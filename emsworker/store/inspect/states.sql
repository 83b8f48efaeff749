-- name: list_cursors
SELECT group_id, next_offset FROM ems_cursor FORCE INDEX (PRIMARY) WHERE group_id IN %(group_ids)s AND `partition` = %(partition)s

-- name: list_claims
-- Claims that are under way; there is one for each busy thread.
SELECT group_id, acked_to, hi FROM ems_claim FORCE INDEX (live)
WHERE state = 'start' AND group_id IN %(group_ids)s AND `partition` = %(partition)s AND source = 'stream'

-- name: list_retries
SELECT group_id, `offset` FROM ems_retry FORCE INDEX (PRIMARY)
WHERE group_id IN %(group_ids)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s

-- name: list_dead
SELECT group_id, `offset` FROM ems_dead FORCE INDEX (PRIMARY)
WHERE group_id IN %(group_ids)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s
