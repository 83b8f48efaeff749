-- name: find_message
-- The place of a message, by its uid, in a topic.
SELECT topic_id, `partition`, `offset` FROM ems_message WHERE topic_id = %(topic_id)s AND uid = %(uid)s

-- name: find_anywhere
-- The places of a message, by its uid; one index dive for each topic.
SELECT STRAIGHT_JOIN m.topic_id, m.`partition`, m.`offset` FROM ems_topic t JOIN ems_message m FORCE INDEX (uid) ON m.topic_id = t.id AND m.uid = %(uid)s

-- name: get_message
SELECT uid, kind, `key`, tag, {headers}, size, born_at, producer_id FROM ems_message
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s

-- name: get_bounds
-- The log start offset of a partition and one past its last row.
SELECT p.log_start, GREATEST(p.log_start, COALESCE((SELECT MAX(m.`offset`) FROM ems_message m WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`), 0) + 1)
FROM ems_partition p WHERE p.topic_id = %(topic_id)s AND p.`partition` = %(partition)s

-- name: get_cursor
SELECT next_offset FROM ems_cursor WHERE group_id = %(group_id)s AND `partition` = %(partition)s

-- name: find_claims
-- The claims of the stream that may cover the offset. Live ranges never overlap, so only the last one that begins at or
-- before it can. Ranges that are done overlap if messages were replayed: the last few are enough to find the latest.
(SELECT lo, hi, acked_to, running, state, isolation, client_id, claimed_at, progress_at FROM ems_claim FORCE INDEX (live)
  WHERE state = 'start' AND group_id = %(group_id)s AND `partition` = %(partition)s AND lo <= %(offset)s AND source = 'stream'
  ORDER BY state DESC, group_id DESC, `partition` DESC, lo DESC LIMIT 1)
UNION ALL
(SELECT lo, hi, acked_to, running, state, isolation, client_id, claimed_at, progress_at FROM ems_claim FORCE INDEX (live)
  WHERE state = 'waiting' AND group_id = %(group_id)s AND `partition` = %(partition)s AND lo <= %(offset)s
  ORDER BY state DESC, group_id DESC, `partition` DESC, lo DESC LIMIT 1)
UNION ALL
(SELECT lo, hi, acked_to, running, state, isolation, client_id, claimed_at, progress_at FROM ems_claim FORCE INDEX (PRIMARY)
  WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo <= %(offset)s AND state = 'done'
  ORDER BY group_id DESC, `partition` DESC, lo DESC LIMIT 20)

-- name: get_retry
-- A retry, and the client that has claimed it.
SELECT r.attempt, r.due_at, {last_error}, c.client_id, c.claimed_at
FROM ems_retry r LEFT JOIN ems_claim c ON c.state = 'start' AND c.group_id = r.group_id AND c.claim_id = r.claim_id
WHERE r.group_id = %(group_id)s AND r.`partition` = %(partition)s AND r.`offset` = %(offset)s

-- name: get_dead
SELECT dead_at, attempts, {dead_error} FROM ems_dead
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s

-- name: list_logs
SELECT attempt, log_lines, left_out FROM ems_attempt_log
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s ORDER BY attempt

-- name: list_attempts
SELECT ended_at, attempt, outcome, ran_ms, client_id, {error} FROM ems_attempt
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s ORDER BY ended_at, attempt
