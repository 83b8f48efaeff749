-- name: lock
-- One archiver per topic. The server lock belongs to the connection, so it is released when the process dies. The name
-- of the database keeps databases of one server apart. It is waited for: the last archiver may have ended without the
-- server having noticed yet.
SELECT GET_LOCK(CONCAT('ems_archive:', LEFT(SHA2(CONCAT(DATABASE(), '/', %(topic_id)s), 256), 40)), 5)

-- name: check_lock
SELECT IS_USED_LOCK(CONCAT('ems_archive:', LEFT(SHA2(CONCAT(DATABASE(), '/', %(topic_id)s), 256), 40))) = CONNECTION_ID()

-- name: sum_messages
-- The number of rows, and the sum of 60 bits of each row's hash: it does not depend on their order, and a change of any
-- column changes it. The Spark side (spark/jobs/archive) builds the same text of a row, which has no body if the message
-- was cancelled.
SELECT COUNT(*), COALESCE(SUM(CAST(CONV(LEFT(SHA2(CONCAT_WS('|', `offset`, kind, COALESCE(HEX(uid), '-'), COALESCE(HEX(`key`), '-'),
  COALESCE(HEX(tag), '-'), SHA2(headers, 256), SHA2(IF(kind = 'cancelled', '', body), 256), size * (kind <> 'cancelled'), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', born_at), producer_id),
  256), 15), 16, 10) AS UNSIGNED)), 0)
FROM ems_message FORCE INDEX (PRIMARY) WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s

-- name: sum_claims
SELECT COUNT(*), COALESCE(SUM(CAST(CONV(LEFT(SHA2(CONCAT_WS('|', lo, hi, acked_to, state, source, isolation, COALESCE(client_id, '-'),
  claim_id, TIMESTAMPDIFF(MICROSECOND, '1970-01-01', claimed_at), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', progress_at)),
  256), 15), 16, 10) AS UNSIGNED)), 0)
FROM ems_claim WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo < %(end)s AND hi < %(end)s AND state = 'done'

-- name: first_claim
-- One index dive.
SELECT MIN(lo) FROM ems_claim WHERE group_id = %(group_id)s AND `partition` = %(partition)s

-- name: sum_attempts
SELECT COUNT(*), COALESCE(SUM(CAST(CONV(LEFT(SHA2(CONCAT_WS('|', `offset`, attempt, outcome, COALESCE(ran_ms, '-'),
  COALESCE(client_id, '-'), COALESCE(SHA2(error, 256), '-'), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ended_at)),
  256), 15), 16, 10) AS UNSIGNED)), 0)
FROM ems_attempt WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s
AND NOT EXISTS (SELECT 1 FROM ems_dead d WHERE d.group_id = ems_attempt.group_id AND d.`partition` = ems_attempt.`partition` AND d.`offset` = ems_attempt.`offset`)

-- name: sum_attempts_at
-- Like sum_attempts, for given offsets: attempts that were left out of earlier segments because of former dead letters.
SELECT COUNT(*), COALESCE(SUM(CAST(CONV(LEFT(SHA2(CONCAT_WS('|', `offset`, attempt, outcome, COALESCE(ran_ms, '-'),
  COALESCE(client_id, '-'), COALESCE(SHA2(error, 256), '-'), TIMESTAMPDIFF(MICROSECOND, '1970-01-01', ended_at)),
  256), 15), 16, 10) AS UNSIGNED)), 0)
FROM ems_attempt WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s
AND NOT EXISTS (SELECT 1 FROM ems_dead d WHERE d.group_id = ems_attempt.group_id AND d.`partition` = ems_attempt.`partition` AND d.`offset` = ems_attempt.`offset`)

-- name: list_left_attempts
SELECT DISTINCT a.group_id, a.`partition`, a.`offset` FROM ems_restored s JOIN ems_group g ON g.topic_id = s.topic_id
JOIN ems_attempt a ON a.group_id = g.id AND a.`partition` = s.`partition` AND a.`offset` = s.`offset`
WHERE s.topic_id = %(topic_id)s AND s.`partition` = %(partition)s AND s.`offset` IN %(offsets)s

-- name: get_place
SELECT log_start, trimmed FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s

-- name: delete_claims
-- Deletes exactly the claims that were copied: a claim id is never reused.
DELETE FROM ems_claim WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo IN %(los)s AND claim_id IN %(claim_ids)s AND state = 'done'

-- name: delete_attempts
DELETE FROM ems_attempt WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s AND ended_at IN %(ended)s
