-- name: make_due
-- By primary key, in the order of the rows; a row that a client has claimed, or that is blocked by an earlier message of
-- its key (due after the year 9000), stays as it is. It locks these rows only.
UPDATE ems_retry SET due_at = NOW(6) WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s
AND claim_id IS NULL AND due_at > NOW(6) AND due_at < '9000-01-01'
