-- name: delete_outbox
-- Forces the unique key, as the relay does: it waits only for a relay that moves this same message.
DELETE p FROM ems_outbox p FORCE INDEX (uid) WHERE p.topic_id = %(topic_id)s AND p.uid = %(uid)s

-- name: lock_message
SELECT `partition`, `offset`, kind, `key` FROM ems_message WHERE topic_id = %(topic_id)s AND uid = %(uid)s FOR UPDATE

-- name: cancel_message
-- The row stays, like a tombstone, so that there is no hole and the id cannot be sent again. Only the kind changes:
-- whoever may cancel needs no right to overwrite a body. Nothing reads the body of a row that is no message.
UPDATE ems_message SET kind = 'cancelled'
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s AND kind = 'message'

-- name: insert_result
-- What whoever waits for the result is told. A group of its own: no role that cancels may change others' results.
INSERT IGNORE INTO ems_result (topic_id, uid, group_id, state, ended_at, expires_at)
VALUES (%(topic_id)s, %(uid)s, %(group_id)s, 'cancelled', NOW(6), NOW(6) + INTERVAL %(kept_s)s SECOND)

-- name: find_cancelled
SELECT 1 FROM ems_result WHERE topic_id = %(topic_id)s AND uid = %(uid)s AND group_id = 0 AND state = 'cancelled'

-- name: list_holders
-- The groups in which a client has the message now, and may run it: later claims, once clients were asked, have not read it.
SELECT DISTINCT g.id FROM ems_group g
LEFT JOIN ems_claim c FORCE INDEX (live) ON c.state = 'start' AND c.group_id = g.id AND c.`partition` = %(partition)s AND c.source = 'stream'
  AND c.lo <= %(offset)s AND c.hi >= %(offset)s AND c.acked_to < %(offset)s
LEFT JOIN ems_retry r ON r.group_id = g.id AND r.`partition` = %(partition)s AND r.`offset` = %(offset)s AND r.claim_id IS NOT NULL
WHERE g.topic_id = %(topic_id)s AND (c.lo IS NOT NULL OR r.`offset` IS NOT NULL)
AND (NOT EXISTS (SELECT 1 FROM ems_result a WHERE a.topic_id = %(topic_id)s AND a.uid = %(uid)s AND a.group_id = %(group_id)s)
  OR EXISTS (SELECT 1 FROM ems_cancel x WHERE x.group_id = g.id AND x.`partition` = %(partition)s AND x.`offset` = %(offset)s)) ORDER BY g.id

-- name: insert_cancel
INSERT IGNORE INTO ems_cancel (group_id, `partition`, `offset`) VALUES

-- name: cancel_row
(%(group_id)s,%(partition)s,%(offset)s)

-- name: list_left
-- Those that no client has any more; a plain read, which locks no claim. Nothing changes that afterwards: whoever claims
-- a cancelled message does not get it.
SELECT k.group_id, k.`partition`, k.`offset` FROM ems_cancel k
WHERE NOT EXISTS (SELECT 1 FROM ems_claim c FORCE INDEX (live) WHERE c.state = 'start' AND c.group_id = k.group_id AND c.`partition` = k.`partition`
  AND c.source = 'stream' AND c.lo <= k.`offset` AND c.hi >= k.`offset` AND c.acked_to < k.`offset`)
AND NOT EXISTS (SELECT 1 FROM ems_retry r WHERE r.group_id = k.group_id AND r.`partition` = k.`partition` AND r.`offset` = k.`offset`
  AND r.claim_id IS NOT NULL) LIMIT %(limit)s

-- name: delete_cancel
DELETE FROM ems_cancel WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s

-- name: drop_waiting_retries
DELETE r FROM ems_retry r JOIN ems_group g ON g.id = r.group_id
WHERE g.topic_id = %(topic_id)s AND r.`partition` = %(partition)s AND r.`offset` = %(offset)s AND r.claim_id IS NULL

-- name: list_keyed_groups
-- Groups that run keys in order: if a message no longer runs, the next one of its key is promoted.
SELECT id FROM ems_group WHERE topic_id = %(topic_id)s AND ordering = 'key' ORDER BY id

-- name: find_unfinished_from
-- The first and last offset of the unfinished part of a partition. It begins at the lowest cursor or live claim of any
-- group, or at the log start offset if the topic has no group.
SELECT COALESCE(LEAST(
    (SELECT MIN(c.next_offset) FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id
     WHERE g.topic_id = p.topic_id AND c.`partition` = p.`partition`),
    COALESCE((SELECT MIN(l.acked_to) + 1 FROM ems_group g JOIN ems_claim l FORCE INDEX (live) ON l.group_id = g.id AND l.state IN ('start', 'waiting')
     WHERE g.topic_id = p.topic_id AND l.`partition` = p.`partition` AND l.source = 'stream'), 18446744073709551615)), p.log_start),
  (SELECT MAX(m.`offset`) FROM ems_message m WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`)
FROM ems_partition p WHERE p.topic_id = %(topic_id)s AND p.`partition` = %(partition)s

-- name: count_range
SELECT COUNT(*) FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` BETWEEN %(lo)s AND %(hi)s AND kind = 'message'

-- name: cancel_range
UPDATE ems_message SET kind = 'cancelled'
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` BETWEEN %(lo)s AND %(hi)s AND kind = 'message'

-- name: count_outbox
SELECT COUNT(*) FROM ems_outbox WHERE topic_id = %(topic_id)s

-- name: list_outbox
SELECT uid FROM ems_outbox WHERE topic_id = %(topic_id)s LIMIT %(limit)s

-- name: delete_some_outbox
DELETE p FROM ems_outbox p FORCE INDEX (uid) WHERE p.topic_id = %(topic_id)s AND p.uid IN %(uids)s

-- name: count_retries
SELECT COUNT(*) FROM ems_retry WHERE group_id = %(group_id)s AND claim_id IS NULL

-- name: lock_some_retries
SELECT `partition`, `offset` FROM ems_retry WHERE group_id = %(group_id)s AND claim_id IS NULL LIMIT %(limit)s FOR UPDATE

-- name: cancel_offsets
UPDATE ems_message SET kind = 'cancelled'
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s AND kind = 'message'

-- name: delete_retries
DELETE FROM ems_retry WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s

-- name: list_stale_retries
-- Retries whose message is gone: there is nothing left to run.
SELECT g.name, r.`partition`, r.`offset`, r.attempt, r.due_at FROM ems_group g JOIN ems_retry r ON r.group_id = g.id
LEFT JOIN ems_message m ON m.topic_id = g.topic_id AND m.`partition` = r.`partition` AND m.`offset` = r.`offset` AND m.kind = 'message'
WHERE g.topic_id = %(topic_id)s AND m.`offset` IS NULL ORDER BY g.name, r.`partition`, r.`offset` LIMIT %(limit)s
