-- Bulk reads of the stream. A statement on rows is built from fragments: the wanted columns, their source, and the
-- conditions.

-- name: list_bounds
-- Each partition of a topic: its log start offset, up to where it is known to have no hole, and one past its last row.
-- One index dive each, however long the stream is; for MAX() in a subquery that depends on an outer row both servers
-- read all rows.
SELECT p.`partition`, p.log_start, GREATEST(p.high_watermark, p.log_start),
  GREATEST(p.log_start, COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0) + 1)
FROM ems_partition p WHERE p.topic_id = %(topic_id)s ORDER BY p.`partition`

-- name: get_log_start
-- Read after the rows: retention raises the log start offset, and commits, before it deletes anything.
SELECT log_start FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s

-- name: get_next_time
-- The first row from an offset on, and the time of its insertion in microseconds since 1970.
SELECT `offset`, TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', born_at) FROM ems_message
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s ORDER BY `offset` LIMIT 1

-- name: weigh_messages
-- The rows and bytes of a range, so that no fetch is larger than a process can hold.
SELECT COUNT(*), COALESCE(SUM(size * (kind <> 'cancelled') + LENGTH(headers)), 0) FROM ems_message
WHERE topic_id = %(owner_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s

-- name: weigh_claims
SELECT COUNT(*), COUNT(*) * 200 FROM ems_claim
WHERE group_id = %(owner_id)s AND `partition` = %(partition)s AND lo >= %(start)s AND lo < %(end)s

-- name: weigh_attempts
SELECT COUNT(*), COALESCE(SUM(LENGTH(error)), 0) FROM ems_attempt
WHERE group_id = %(owner_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s

-- name: weigh_retries
SELECT COUNT(*), COALESCE(SUM(LENGTH(last_error)), 0) FROM ems_retry
WHERE group_id = %(owner_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s

-- name: weigh_deadletters
SELECT COUNT(*), COALESCE(SUM(LENGTH(body) + LENGTH(headers) + LENGTH(error)), 0) FROM ems_dead
WHERE group_id = %(owner_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s

-- name: select
SELECT %(columns)s

-- name: select_packed
-- All rows as one: their number, and then each column as one value, which this library need not take apart row by row.
-- All values of one row are appended in the same step, so that the n-th of each column are of one row.
SELECT COUNT(*), %(columns)s

-- name: allow_packed
-- A longer value is cut. The reader notices by the lengths, and asks for fewer rows.
SET SESSION group_concat_max_len = %(most_bytes)s

-- name: pack
-- A NULL adds nothing.
GROUP_CONCAT(%(values)s SEPARATOR '')

-- name: pack_lines
-- Commas and ends of lines are binary, so that no line has a character set.
GROUP_CONCAT(CONCAT_WS(X'2C', %(values)s), X'0A' SEPARATOR '')

-- name: or_nothing
-- CONCAT_WS leaves a NULL out with its comma.
COALESCE(%(value)s, '')

-- name: length
LENGTH(%(value)s)

-- name: stored
-- A text as the column holds it: a conversion would replace what is no UTF-8.
CAST(%(value)s AS BINARY)

-- name: no_columns
1

-- name: from_messages
FROM ems_message FORCE INDEX (PRIMARY) WHERE topic_id = %(owner_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s

-- name: only_messages
AND kind = 'message'

-- name: more_kinds
-- Tombstones, and cancelled messages without their bodies, are included only on request.
AND (kind = 'message' OR (kind = 'cancelled' AND %(cancelled)s) OR (kind = 'tombstone' AND %(tombstones)s))

-- name: between_messages
AND born_at >= '1970-01-01' + INTERVAL %(from_us)s MICROSECOND AND born_at < '1970-01-01' + INTERVAL %(to_us)s MICROSECOND

-- name: order_messages
ORDER BY `offset`

-- name: from_claims
FROM ems_claim WHERE group_id = %(owner_id)s AND `partition` = %(partition)s AND lo >= %(start)s AND lo < %(end)s

-- name: settled_claims
AND state = 'done' AND hi < %(below)s

-- name: order_claims
ORDER BY lo, claim_id

-- name: from_attempts
FROM ems_attempt WHERE group_id = %(owner_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s

-- name: settled_attempts
-- The attempts of a dead letter are kept.
AND NOT EXISTS (SELECT 1 FROM ems_dead d WHERE d.group_id = ems_attempt.group_id AND d.`partition` = ems_attempt.`partition` AND d.`offset` = ems_attempt.`offset`)

-- name: order_attempts
ORDER BY `offset`, ended_at, attempt

-- name: from_retries
FROM ems_retry WHERE group_id = %(owner_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s

-- name: order_retries
ORDER BY `offset`

-- name: from_deadletters
FROM ems_dead WHERE group_id = %(owner_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s

-- name: between_deadletters
AND born_at >= '1970-01-01' + INTERVAL %(from_us)s MICROSECOND AND born_at < '1970-01-01' + INTERVAL %(to_us)s MICROSECOND

-- name: order_deadletters
ORDER BY `offset`

-- name: messages_key
`key`

-- name: messages_value
body

-- name: value_of_any_kind
-- The body of a cancelled message is stored until retention, for nobody to read.
IF(kind = 'cancelled', '', body)

-- name: messages_offset
`offset`

-- name: messages_timestamp
TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', born_at)

-- name: messages_headers
headers

-- name: messages_uid
uid

-- name: messages_kind
kind

-- name: messages_tag
tag

-- name: messages_size
-- Not by IF: with a column without a sign, MariaDB makes a decimal of it.
size * (kind <> 'cancelled')

-- name: messages_producer
producer_id

-- name: messages_rawHeaders
headers

-- name: claims_lo
lo

-- name: claims_hi
hi

-- name: claims_ackedTo
acked_to

-- name: claims_state
state

-- name: claims_source
source

-- name: claims_isolation
isolation

-- name: claims_client
client_id

-- name: claims_claimId
claim_id

-- name: claims_claimedAt
TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', claimed_at)

-- name: claims_progressAt
TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', progress_at)

-- name: attempts_offset
`offset`

-- name: attempts_attempt
attempt

-- name: attempts_outcome
outcome

-- name: attempts_ranMs
ran_ms

-- name: attempts_client
client_id

-- name: attempts_error
error

-- name: attempts_endedAt
TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', ended_at)

-- name: retries_offset
`offset`

-- name: retries_attempt
attempt

-- name: retries_dueAt
-- A blocked retry has no due time of its own.
IF(due_at >= '9000-01-01', NULL, TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', due_at))

-- name: retries_key
`key`

-- name: retries_error
last_error

-- name: deadletters_key
`key`

-- name: deadletters_value
body

-- name: deadletters_offset
`offset`

-- name: deadletters_timestamp
TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', born_at)

-- name: deadletters_headers
headers

-- name: deadletters_uid
uid

-- name: deadletters_tag
tag

-- name: deadletters_producer
producer_id

-- name: deadletters_rawHeaders
headers

-- name: deadletters_attempts
attempts

-- name: deadletters_reason
reason

-- name: deadletters_error
error

-- name: deadletters_deadAt
TIMESTAMPDIFF(MICROSECOND, TIMESTAMP'1970-01-01 00:00:00', dead_at)

-- name: dbtable
-- For a third-party driver: a BIGINT UNSIGNED would become a decimal. The conditions of `predicate` are on plain
-- columns, so that the server reads by its primary key; columns that are not requested are not computed.
SELECT topic_id, `partition`, `offset`, kind, `key`, body, born_at, CAST(`offset` AS SIGNED) AS place,
  TIMESTAMPDIFF(MICROSECOND, TIMESTAMP '1970-01-01 00:00:00', born_at) AS born_us FROM ems_message

-- name: predicate
-- For a third-party driver: the rows that one task reads. Only numbers are substituted.
topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s AND kind = 'message'
