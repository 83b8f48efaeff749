-- name: find_lost
-- Claims whose owner is gone or whose running message is past its deadline. Few rows: one for each busy thread.
-- A claim is stuck only if its owner renewed its lease after the deadline; otherwise the owner may be dead, and the
-- message is not to blame.
SELECT c.group_id, g.topic_id, c.`partition`, c.lo, c.claim_id, COALESCE(t.name, ''), COALESCE(g.name, ''), COALESCE(c.client_id, ''),
  c.running IS NOT NULL
FROM ems_claim c FORCE INDEX (live) LEFT JOIN ems_client l ON l.client_id = c.client_id AND l.expires_at > NOW(6)
LEFT JOIN ems_group g ON g.id = c.group_id LEFT JOIN ems_topic t ON t.id = g.topic_id
WHERE c.state = 'start' AND (l.client_id IS NULL OR c.deadline_at < l.renewed_at)

-- name: lock_lost
-- Checked again under the lock: the owner may have come back in between. The holder of the lock is recovering or
-- finishing the claim, so there is no need to wait; a beat that waits would lose its leadership.
-- The third column from the end: seconds since the owner's lease expired; NULL if the owner was deregistered.
SELECT c.hi, c.acked_to, c.running, c.source, c.isolation, c.client_id,
  (SELECT TIMESTAMPDIFF(MICROSECOND, l.expires_at, NOW(6)) / 1000000 FROM ems_client l WHERE l.client_id = c.client_id),
  NOT EXISTS (SELECT 1 FROM ems_client l WHERE l.client_id = c.client_id AND l.expires_at > NOW(6)),
  EXISTS (SELECT 1 FROM ems_client l WHERE l.client_id = c.client_id AND l.renewed_at > c.deadline_at)
FROM ems_claim c
WHERE c.group_id = %(group_id)s AND c.`partition` = %(partition)s AND c.lo = %(lo)s AND c.claim_id = %(claim_id)s AND c.state = 'start'
FOR UPDATE SKIP LOCKED

-- name: truncate_claim
UPDATE ems_claim SET state = 'done', hi = %(acked_to)s, progress_at = NOW(6)
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo = %(lo)s AND claim_id = %(claim_id)s

-- name: delete_claim
DELETE FROM ems_claim WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo = %(lo)s AND claim_id = %(claim_id)s

-- name: find_suspect
-- The first unfinished message that passes the group's filter.
SELECT `offset` FROM ems_message
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` BETWEEN %(from_offset)s AND %(hi)s AND kind = 'message'
  AND (%(any_tag)s = 1 OR tag IN %(tags)s)
  AND (%(any_headers)s = 1 OR CASE WHEN LENGTH(SUBSTRING_INDEX(headers, '[', 50)) + LENGTH(SUBSTRING_INDEX(headers, '{', 50)) = 2 * LENGTH(headers)
    AND JSON_VALID(CONVERT(headers USING utf8mb4)) = 1 THEN JSON_CONTAINS(CONVERT(headers USING utf8mb4), %(wanted_headers)s) ELSE 0 END = 1)
ORDER BY `offset` LIMIT 1

-- name: get_headers
-- The headers name the task of the message that is charged; its uid is for the log.
SELECT headers, uid FROM ems_message
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s AND kind = 'message'

-- name: list_claimed_retries
SELECT `offset`, attempt, `key` FROM ems_retry FORCE INDEX (due) WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s ORDER BY `offset`

-- name: release_claimed_retries
UPDATE ems_retry FORCE INDEX (due) SET claim_id = NULL, isolation = %(isolation)s WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s

-- name: get_filter
SELECT filter FROM ems_group WHERE id = %(group_id)s

-- name: get_group
SELECT ladder, max_attempts, ordering FROM ems_group WHERE id = %(group_id)s

-- name: add_waiting
INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, isolation, client_id, claimed_at, progress_at, deadline_at)
VALUES (%(group_id)s, %(partition)s, %(lo)s, %(claim_id)s, %(hi)s, %(lo)s - 1, 'waiting', 'stream', %(isolation)s, NULL, NOW(6), NOW(6), NOW(6))
