-- name: move_acked_to
-- The fence: a zombie's update matches no row, and its transaction rolls back. So does a flush that was made before
-- another whose answer was lost: it would move the acked offset back, and a transactional effect would be repeated.
UPDATE ems_claim SET acked_to = %(acked_to)s, state = %(state)s, running = %(running)s, progress_at = NOW(6),
  deadline_at = NOW(6) + INTERVAL %(timeout_s)s SECOND
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo = %(lo)s AND claim_id = %(claim_id)s
AND client_id = %(client_id)s AND state = 'start' AND (%(was)s IS NULL OR acked_to = %(was)s)

-- name: end_retry_claim
-- A claim of retries leaves no log row: ems_attempt records the outcome of each message.
DELETE FROM ems_claim
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo = %(lo)s AND claim_id = %(claim_id)s
AND client_id = %(client_id)s AND state = 'start'

-- name: cut_claim
-- The owner gives back what it has not started; only once, even if the first answer was lost.
UPDATE ems_claim SET hi = %(hi)s, progress_at = NOW(6)
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo = %(lo)s AND claim_id = %(claim_id)s
AND client_id = %(client_id)s AND state = 'start' AND hi = %(was_hi)s

-- name: get_end
-- The end and the acked offset of a claim, if its owner still has it.
SELECT hi, acked_to FROM ems_claim
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo = %(lo)s AND claim_id = %(claim_id)s
AND client_id = %(client_id)s AND state = 'start'

-- name: find_finished
-- The row of a range that its owner has finished keeps the token.
SELECT 1 FROM ems_claim
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo = %(lo)s AND claim_id = %(claim_id)s AND state = 'done'

-- name: find_attempt
SELECT 1 FROM ems_attempt WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s
AND attempt = %(attempt)s AND client_id = %(client_id)s LIMIT 1

-- name: release_claim
-- No message of the claim was started: the whole range waits for another owner.
UPDATE ems_claim SET state = 'waiting', client_id = NULL, running = NULL, isolation = %(isolation)s, progress_at = NOW(6)
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo = %(lo)s AND claim_id = %(claim_id)s
AND client_id = %(client_id)s AND state = 'start'

-- name: add_waiting
INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, isolation, client_id, claimed_at, progress_at, deadline_at)
VALUES (%(group_id)s, %(partition)s, %(lo)s, %(claim_id)s, %(hi)s, %(lo)s - 1, 'waiting', 'stream', %(isolation)s, NULL, NOW(6), NOW(6), NOW(6))

-- name: release_retries
-- Retries that were claimed and not started are given back unchanged.
UPDATE ems_retry FORCE INDEX (due) SET claim_id = NULL WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s AND `partition` = %(partition)s AND `offset` > %(after)s

-- name: finish_retries
DELETE FROM ems_retry WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s

-- name: upsert_retries
-- A first failure inserts the row, a later one moves it up the ladder.
INSERT INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, last_error, `key`) VALUES

-- name: retry_row
(%(group_id)s,%(partition)s,%(offset)s,%(attempt)s,NOW(6) + INTERVAL %(delay_s)s SECOND,%(error)s,NULL)

-- name: keyed_retry_row
-- If keys run in order, a retry stores its key, so that later messages of the key are blocked.
(%(group_id)s,%(partition)s,%(offset)s,%(attempt)s,NOW(6) + INTERVAL %(delay_s)s SECOND,%(error)s,(SELECT m.`key` FROM ems_message m WHERE m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s AND m.`offset` = %(offset)s))

-- name: upsert_retries_end
ON DUPLICATE KEY UPDATE attempt = VALUES(attempt), due_at = VALUES(due_at), last_error = VALUES(last_error), claim_id = NULL

-- name: mark_suspects
-- These messages ended their process or their connection: from now on each runs alone.
UPDATE ems_retry SET isolation = GREATEST(isolation, %(isolation)s) WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s

-- name: set_error
-- An error that many messages of a storm have is sent once, and not twice for each of them.
SET @ems_error%(number)s = %(error)s

-- name: error_of
@ems_error%(number)s

-- name: insert_attempts
INSERT INTO ems_attempt (group_id, `partition`, `offset`, ended_at, attempt, outcome, ran_ms, client_id, error) VALUES

-- name: attempt_row
(%(group_id)s,%(partition)s,%(offset)s,NOW(6),%(attempt)s,%(outcome)s,%(ran_ms)s,%(client_id)s,%(error)s)

-- name: insert_dead_letter
-- The dead letter carries its own copy of the body, made inside the server. Its task is taken from its headers, which
-- may be damaged or hostile.
INSERT IGNORE INTO ems_dead (group_id, `partition`, `offset`, {message_columns}, born_at, producer_id, dead_at, attempts, task, error_type, reason, error)
SELECT %(group_id)s, m.`partition`, m.`offset`, {m_message_columns}, m.born_at, m.producer_id, NOW(6), %(attempt)s,
  COALESCE(CASE WHEN LENGTH(SUBSTRING_INDEX(m.headers, '[', 50)) + LENGTH(SUBSTRING_INDEX(m.headers, '{', 50)) = 2 * LENGTH(m.headers)
    AND JSON_VALID(CONVERT(m.headers USING utf8mb4)) = 1 THEN LEFT(JSON_UNQUOTE(JSON_EXTRACT(CONVERT(m.headers USING utf8mb4), %(task_path)s)), 190) END, ''),
  %(error_type)s, %(reason)s, %(error)s
FROM ems_message m WHERE m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s AND m.`offset` = %(offset)s AND m.kind = 'message'

-- name: get_followed
-- The headers of a message whose end an extension follows, perhaps: the text is looked for, and read by who asks.
SELECT uid, headers FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s
AND kind = 'message' AND LOCATE('"ems-follow"', headers) > 0
