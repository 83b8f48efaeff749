-- name: check_owner
-- Allow one owner of a partition at a time. The cursor is locked, so no claim is inserted meanwhile; one that ends in
-- between is seen next time. A message that was detached because it takes long blocks only its key. With @ems_lo NULL
-- the statements that follow find nothing.
SET @ems_lo = IF(@ems_may = 0 OR (SELECT c.lo FROM ems_claim c FORCE INDEX (live)
    WHERE c.state = 'start' AND c.group_id = %(group_id)s AND c.`partition` = @ems_p AND c.detached = 0 LIMIT 1) IS NOT NULL, NULL, @ems_lo)

-- name: find_first_retry
-- If a whole partition is in order, a message to retry blocks everything behind it.
SELECT `offset`, isolation INTO @ems_old, @ems_isolation FROM ems_retry FORCE INDEX (PRIMARY)
WHERE @ems_lo IS NOT NULL AND group_id = %(group_id)s AND `partition` = %(partition)s ORDER BY group_id, `partition`, `offset` LIMIT 1

-- name: take_first_retry
UPDATE ems_retry SET claim_id = %(claim_id)s
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` = @ems_old AND claim_id IS NULL AND due_at <= NOW(6) AND isolation <= %(most_isolation)s

-- name: find_due_key
SELECT `offset`, isolation INTO @ems_old, @ems_isolation FROM ems_retry FORCE INDEX (turn)
WHERE @ems_lo IS NOT NULL AND group_id = %(group_id)s AND `partition` = %(partition)s AND claim_id IS NULL AND due_at <= NOW(6) AND isolation <= %(most_isolation)s LIMIT 1

-- name: take_due_keys
-- The first of each key; a suspect message is taken alone.
UPDATE ems_retry FORCE INDEX (turn) SET claim_id = %(claim_id)s
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND claim_id IS NULL AND due_at <= NOW(6)
AND @ems_old IS NOT NULL AND isolation = @ems_isolation AND (isolation = 0 OR `offset` = @ems_old)
LIMIT %(batch)s

-- name: find_near
-- Messages blocked behind the first of each key are claimed with it if they are near. This bounds the claim, and a
-- chain is not run one message at a time.
SELECT MIN(`offset`) + 4 * %(batch)s INTO @ems_near FROM ems_retry FORCE INDEX (due)
WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s AND isolation = 0

-- name: take_behind
UPDATE ems_retry h FORCE INDEX (due) JOIN ems_retry f FORCE INDEX (lane)
  ON f.group_id = h.group_id AND f.`partition` = h.`partition` AND f.`key` = h.`key` AND f.`offset` > h.`offset`
SET f.claim_id = %(claim_id)s
WHERE h.group_id = %(group_id)s AND h.claim_id = %(claim_id)s AND f.`offset` < @ems_near AND f.claim_id IS NULL AND f.isolation = 0

-- name: give_way
-- Retries come before anything else of their partition.
SET @ems_lo = IF(@ems_old IS NULL, @ems_lo, NULL)

-- name: find_first_waiting
-- Ranges that were given back come before new messages; nothing passes them until their time (not_before), or while they
-- need more isolation than the client gives.
SELECT lo, hi, isolation, claim_id, IF(not_before > NOW(6) OR isolation > %(most_isolation)s, 1, 0) INTO @ems_lo, @ems_hi, @ems_isolation, @ems_old, @ems_later
FROM ems_claim FORCE INDEX (live)
WHERE @ems_lo IS NOT NULL AND state = 'waiting' AND group_id = %(group_id)s AND `partition` = %(partition)s ORDER BY lo LIMIT 1 FOR UPDATE

-- name: advance_cursor
-- Changes the cursor's row, and return_cursor changes it back, if a range was adopted that had been given back. Between
-- two looks of another node's claim that adoption may become visible there, whatever that claim has locked: it would find
-- neither a running claim nor one that waits. Both have changed this row, so the cluster rolls one of them back.
UPDATE ems_cursor SET next_offset = next_offset + 1
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND @ems_hi IS NOT NULL AND @ems_old IS NOT NULL

-- name: return_cursor
UPDATE ems_cursor SET next_offset = next_offset - 1
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND @ems_hi IS NOT NULL AND @ems_old IS NOT NULL

-- name: check_time
SET @ems_hi = IF(@ems_later = 1, NULL, @ems_hi)

-- name: find_range_if_none_waits
SET @ems_hi = IF(@ems_old IS NULL, (SELECT MAX(r.`offset`) FROM (
  SELECT m.`offset`, ROW_NUMBER() OVER (ORDER BY m.`offset`) AS place,
    SUM(m.size) OVER (ORDER BY m.`offset` ROWS UNBOUNDED PRECEDING) AS bytes
  FROM (SELECT `offset`, total_size * (kind = 'message') AS size FROM ems_message
    WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= @ems_lo ORDER BY `offset` LIMIT %(batch)s) m
  ) r WHERE r.`offset` = @ems_lo + r.place - 1 AND (r.bytes <= %(batch_bytes)s OR r.place = 1)), @ems_hi)

-- name: list_blocked
-- Keys of these messages that have a retry. Read with the bodies: a retry that has ended by then no longer blocks.
SELECT DISTINCT m.`key` FROM ems_message m
WHERE m.topic_id = %(topic_id)s AND m.`partition` = @ems_p AND m.`offset` BETWEEN @ems_lo AND @ems_hi AND m.kind = 'message'
  AND (SELECT r.`offset` FROM ems_retry r FORCE INDEX (lane)
    WHERE r.group_id = %(group_id)s AND r.`partition` = m.`partition` AND r.`key` = m.`key` LIMIT 1) IS NOT NULL

-- name: list_keys
SELECT `offset`, `key` FROM ems_retry FORCE INDEX (due) WHERE group_id = %(group_id)s AND claim_id = %(claim_id)s
