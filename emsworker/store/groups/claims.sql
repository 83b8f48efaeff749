-- name: begin_taking
-- Resets the variables. Only a client with a valid lease claims anything, so that no claim is an orphan from the start.
-- Nothing is claimed of a group that is paused by now, or that has limits if there is no permit: a search for work may
-- be old, and a wake-up sends clients without a search. Nor is anything claimed of a group with paused tasks by a client that
-- has not read which they are. The rest of the packet depends on variables, never on
-- ROW_COUNT(): after its client has died, MySQL returns -1 for that and goes on to the COMMIT, which would leave a
-- claim without a moved cursor.
SET @ems_p = NULL, @ems_lo = NULL, @ems_hi = NULL, @ems_isolation = 0, @ems_old = NULL, @ems_later = 0,
  @ems_may = IF(EXISTS (SELECT 1 FROM ems_client WHERE client_id = %(client_id)s AND expires_at > NOW(6))
  AND EXISTS (SELECT 1 FROM ems_group g JOIN ems_topic t ON t.id = g.topic_id WHERE g.id = %(group_id)s AND g.paused = 0 AND t.rule IN ('rw', 'r')
    AND (g.held_tasks = 0 OR %(knows_held)s = 1))
  AND (%(permitted)s = 1 OR NOT EXISTS (SELECT 1 FROM ems_limit WHERE group_id = %(group_id)s AND (per_s IS NOT NULL OR max_running IS NOT NULL))),
  1, 0)

-- name: await_commit
-- Waits for the commit of the row at the cursor, if it is there; a transaction of its own, which holds nothing meanwhile.
SELECT 1 FROM ems_message FORCE INDEX (PRIMARY) WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >=
  (SELECT next_offset FROM ems_cursor WHERE group_id = %(group_id)s AND `partition` = %(partition)s) ORDER BY `offset` LIMIT 1 LOCK IN SHARE MODE

-- name: lock_cursor
-- The only row that claims of a group contend for; locked until the commit at the end of this packet.
SELECT `partition`, next_offset INTO @ems_p, @ems_lo FROM ems_cursor
WHERE group_id = %(group_id)s AND `partition` = %(partition)s FOR UPDATE

-- name: lock_cursor_or_skip
SELECT `partition`, next_offset INTO @ems_p, @ems_lo FROM ems_cursor
WHERE group_id = %(group_id)s AND `partition` = %(partition)s FOR UPDATE SKIP LOCKED

-- name: find_range
-- A plain read after the lock: the longest run from the cursor without a hole, of at most `batch` rows and
-- `batch_bytes` bytes of headers and bodies that will be read: those of cancelled messages are not.
SELECT MAX(r.`offset`) INTO @ems_hi FROM (
  SELECT m.`offset`, ROW_NUMBER() OVER (ORDER BY m.`offset`) AS place,
    SUM(m.size) OVER (ORDER BY m.`offset` ROWS UNBOUNDED PRECEDING) AS bytes
  FROM (SELECT `offset`, total_size * (kind = 'message') AS size FROM ems_message
    WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= @ems_lo ORDER BY `offset` LIMIT %(batch)s) m
) r WHERE @ems_may = 1 AND r.`offset` = @ems_lo + r.place - 1 AND (r.bytes <= %(batch_bytes)s OR r.place = 1)

-- name: insert_claim
INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, isolation, client_id, claimed_at, progress_at, deadline_at)
SELECT %(group_id)s, %(partition)s, @ems_lo, %(claim_id)s, @ems_hi, @ems_lo - 1, 'start', 'stream', 0, %(client_id)s, NOW(6), NOW(6),
  NOW(6) + INTERVAL %(timeout_s)s SECOND
FROM DUAL WHERE @ems_hi IS NOT NULL AND @ems_old IS NULL

-- name: move_cursor
UPDATE ems_cursor SET next_offset = @ems_hi + 1
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND @ems_hi IS NOT NULL AND @ems_old IS NULL

-- name: find_waiting
-- Only from a partition on: higher partitions have a higher priority. Claims that need more isolation are passed over;
-- there is one for each claim that a dead process had.
SELECT `partition`, lo, hi, isolation, claim_id INTO @ems_p, @ems_lo, @ems_hi, @ems_isolation, @ems_old FROM ems_claim FORCE INDEX (live)
WHERE @ems_may = 1 AND state = 'waiting' AND group_id = %(group_id)s AND `partition` >= %(from_partition)s AND isolation <= %(most_isolation)s
  AND (not_before IS NULL OR not_before <= NOW(6)) LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: cut_waiting
-- At most a batch, and less the more owners have died in the claim; the rest stays waiting.
SET @ems_end = @ems_hi, @ems_hi = LEAST(@ems_hi, @ems_lo + %(batch)s - 1, @ems_lo + CASE @ems_isolation WHEN 0 THEN %(batch)s WHEN 1 THEN %(few)s ELSE 1 END - 1)

-- name: add_rest
INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, isolation, client_id, claimed_at, progress_at, deadline_at)
SELECT %(group_id)s, @ems_p, @ems_hi + 1, %(rest_id)s, @ems_end, @ems_hi, 'waiting', 'stream', @ems_isolation, NULL, NOW(6), NOW(6), NOW(6)
FROM DUAL WHERE @ems_hi < @ems_end

-- name: adopt_waiting
-- A new fencing token for the new owner. The row is locked, so it is unchanged since find_waiting.
UPDATE ems_claim SET claim_id = %(claim_id)s, hi = @ems_hi, state = 'start', client_id = %(client_id)s, not_before = NULL, claimed_at = NOW(6),
  progress_at = NOW(6), deadline_at = NOW(6) + INTERVAL %(timeout_s)s SECOND
WHERE group_id = %(group_id)s AND `partition` = @ems_p AND lo = @ems_lo AND claim_id = @ems_old AND @ems_hi IS NOT NULL

-- name: find_due_retry
SELECT `partition`, `offset`, isolation INTO @ems_p, @ems_old, @ems_isolation FROM ems_retry FORCE INDEX (due)
WHERE @ems_may = 1 AND group_id = %(group_id)s AND claim_id IS NULL AND due_at <= NOW(6) AND isolation <= %(most_isolation)s LIMIT 1

-- name: take_due_retries
-- Retries of one partition. A suspect (isolation > 0) is taken alone, so that a crash identifies it exactly.
UPDATE ems_retry FORCE INDEX (due) SET claim_id = %(claim_id)s
WHERE group_id = %(group_id)s AND claim_id IS NULL AND due_at <= NOW(6) AND `partition` = @ems_p
AND isolation = @ems_isolation AND (isolation = 0 OR `offset` = @ems_old)
LIMIT %(batch)s

-- name: leave_large_retries
-- Those beyond `batch_bytes` of headers and bodies wait for the next claim; the first always fits.
UPDATE ems_retry r FORCE INDEX (due) JOIN (
  SELECT s.`offset`, ROW_NUMBER() OVER (ORDER BY s.`offset`) AS place,
    SUM(COALESCE(m.total_size, 0)) OVER (ORDER BY s.`offset` ROWS UNBOUNDED PRECEDING) AS bytes
  FROM ems_retry s FORCE INDEX (due)
  LEFT JOIN ems_message m FORCE INDEX (PRIMARY) ON m.topic_id = %(topic_id)s AND m.`partition` = s.`partition` AND m.`offset` = s.`offset`
  WHERE s.group_id = %(group_id)s AND s.claim_id = %(claim_id)s
) d ON d.`offset` = r.`offset` AND d.place > 1 AND d.bytes > %(batch_bytes)s
SET r.claim_id = NULL WHERE r.group_id = %(group_id)s AND r.claim_id = %(claim_id)s

-- name: insert_retry_claim
INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, isolation, client_id, claimed_at, progress_at, deadline_at)
SELECT %(group_id)s, r.`partition`, MIN(r.`offset`), %(claim_id)s, MAX(r.`offset`), MIN(r.`offset`) - 1, 'start', 'retry', @ems_isolation, %(client_id)s,
  NOW(6), NOW(6), NOW(6) + INTERVAL %(timeout_s)s SECOND
FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = %(group_id)s AND r.claim_id = %(claim_id)s GROUP BY r.`partition`

-- name: get_claimed
SELECT @ems_p, @ems_lo, @ems_hi, @ems_isolation, NOW(6)

-- name: read_bodies
-- Runs after the commit, outside the lock; does not fetch tombstones, which have nothing to run.
SELECT `offset`, {message_columns}, born_at FROM ems_message
WHERE topic_id = %(topic_id)s AND `partition` = @ems_p AND `offset` BETWEEN @ems_lo AND @ems_hi AND kind = 'message' ORDER BY `offset`

-- name: read_wanted_bodies
-- As read_bodies, without what the filter excludes. Damaged or empty headers match no filter; they must not fail the
-- statement for the other messages. Headers nested more than 100 deep would, on MySQL; our own headers have one bracket
-- each. SUBSTRING_INDEX stops at the 50th bracket; REPLACE, to count them, moves the rest of the text for each one: hours
-- on MariaDB for 16 MB of brackets.
SELECT `offset`, {message_columns}, born_at FROM ems_message
WHERE topic_id = %(topic_id)s AND `partition` = @ems_p AND `offset` BETWEEN @ems_lo AND @ems_hi AND kind = 'message'
  AND (%(any_tag)s = 1 OR tag IN %(tags)s)
  AND (%(any_headers)s = 1 OR CASE WHEN LENGTH(SUBSTRING_INDEX(headers, '[', 50)) + LENGTH(SUBSTRING_INDEX(headers, '{', 50)) = 2 * LENGTH(headers)
    AND JSON_VALID(CONVERT(headers USING utf8mb4)) = 1 THEN JSON_CONTAINS(CONVERT(headers USING utf8mb4), %(wanted_headers)s) ELSE 0 END = 1)
ORDER BY `offset`

-- name: count_bodies
-- Run only if there are fewer bodies than the claim has offsets: are they tombstones, or excluded by the
-- filter?
SELECT COUNT(*) FROM ems_message
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` BETWEEN %(lo)s AND %(hi)s AND kind = 'message'
  AND (%(any_tag)s = 1 OR tag IN %(tags)s)
  AND (%(any_headers)s = 1 OR CASE WHEN LENGTH(SUBSTRING_INDEX(headers, '[', 50)) + LENGTH(SUBSTRING_INDEX(headers, '{', 50)) = 2 * LENGTH(headers)
    AND JSON_VALID(CONVERT(headers USING utf8mb4)) = 1 THEN JSON_CONTAINS(CONVERT(headers USING utf8mb4), %(wanted_headers)s) ELSE 0 END = 1)

-- name: read_retry_bodies
-- A retry whose message is gone is returned without one, so that it is ended too.
SELECT r.attempt, r.`offset`, {m_message_columns}, m.born_at
FROM ems_retry r FORCE INDEX (due) LEFT JOIN ems_message m ON m.topic_id = %(topic_id)s AND m.`partition` = r.`partition` AND m.`offset` = r.`offset`
AND m.kind = 'message' WHERE r.group_id = %(group_id)s AND r.claim_id = %(claim_id)s ORDER BY r.`offset`

-- name: get_retry_claim
-- The claim, and the number of retries that it holds.
SELECT `partition`, lo, hi, isolation, NOW(6), (SELECT COUNT(*) FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = %(group_id)s AND r.claim_id = %(claim_id)s)
FROM ems_claim WHERE state = 'start' AND group_id = %(group_id)s AND claim_id = %(claim_id)s

-- name: find_new
-- New messages at the cursors of groups: a primary key look-up each, for one that looks hundreds of times a second, and
-- for the ends of broadcast topics, too. It sees no hole, no retry, no waiting claim and no pause: find_work does.
(SELECT STRAIGHT_JOIN 0, g.topic_id, c.`partition`, 0 FROM ems_group g JOIN ems_cursor c ON c.group_id = g.id
  JOIN ems_message m FORCE INDEX (PRIMARY) ON m.topic_id = g.topic_id AND m.`partition` = c.`partition` AND m.`offset` = c.next_offset
  WHERE g.id IN %(group_ids)s)

-- name: find_ends
-- The ends of broadcast topics: appended to find_new, and read with a claim.
(SELECT 1, p.topic_id, p.`partition`, GREATEST(p.log_start, COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY)
  WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition` ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0) + 1)
  FROM ems_partition p WHERE p.topic_id IN %(topic_ids)s)

-- name: or_other
-- Appended to both by one that looks seldom: groups for which find_work would find a due retry, a waiting claim, or
-- rows at or behind a cursor, which may lie behind a hole.
(SELECT 2, g.topic_id, 0, 0 FROM ems_group g WHERE g.id IN %(group_ids)s AND (
  (SELECT r.due_at FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = g.id AND r.claim_id IS NULL LIMIT 1) <= NOW(6)
  OR EXISTS (SELECT 1 FROM ems_claim c FORCE INDEX (live) WHERE c.state = 'waiting' AND c.group_id = g.id
    AND (c.not_before IS NULL OR c.not_before <= NOW(6)))))
UNION ALL
(SELECT 2, e.topic_id, 0, 0 FROM (SELECT g.topic_id, c.next_offset, (SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY)
    WHERE m.topic_id = g.topic_id AND m.`partition` = c.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1) AS last
  FROM ems_group g JOIN ems_cursor c ON c.group_id = g.id WHERE g.id IN %(group_ids)s) e WHERE e.last >= e.next_offset)

-- name: find_work
-- The work available to each group, by kind.
-- 0: the highest partition with a waiting claim (or -1), and whether a retry is due; the row also means that the group
-- is not paused and not ordered.
-- 2: messages (or a hole) at a cursor; for a group that runs in order, a partition where no claim runs and that has a
-- due retry, a waiting claim or messages (or a hole).
-- 3: the group has limits.
-- 5: a message that was cancelled while a client of the group has it.
-- 4: microseconds until the first of its retries, with whether some of its tasks are paused; until the first outbox message of its topic, or the first schedule is due.
-- Each is one index probe, whatever the backlog; a paused group or topic has no work. The indexes are forced, because
-- with old statistics a server reads the whole table. A correlated column is compared by = only, because no server
-- reads a range by it: the message at the cursor, or else the last one, is enough. An ORDER BY names the whole index,
-- or MySQL sorts; if a NULL is in the index, MariaDB sorts then, so due retries have no ORDER BY and come in the order
-- of the forced index.
(SELECT 0, g.id, COALESCE((SELECT c.`partition` FROM ems_claim c FORCE INDEX (live) WHERE c.state = 'waiting' AND c.group_id = g.id
    AND (c.not_before IS NULL OR c.not_before <= NOW(6))
    ORDER BY c.state DESC, c.group_id DESC, c.`partition` DESC LIMIT 1), -1),
  COALESCE((SELECT r.due_at FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = g.id AND r.claim_id IS NULL LIMIT 1) <= NOW(6), 0), 0
  FROM ems_group g JOIN ems_topic t ON t.id = g.topic_id
  WHERE g.id IN %(group_ids)s AND g.paused = 0 AND t.rule IN ('rw', 'r') AND g.ordering = 'none')
UNION ALL
(SELECT 2, w.group_id, w.`partition`, w.next_offset, IF(w.due = 1 OR w.waiting = 1, w.next_offset, w.head) FROM (
  SELECT c.group_id, c.`partition`, c.next_offset,
    IF(g.ordering = 'none', 0, (SELECT b.lo FROM ems_claim b FORCE INDEX (live) WHERE b.state = 'start' AND b.group_id = c.group_id
     AND b.`partition` = c.`partition` AND b.detached = 0 LIMIT 1) IS NOT NULL) AS busy,
    IF(g.ordering = 'none', NULL, (SELECT IF(b.not_before > NOW(6), 0, 1) FROM ems_claim b FORCE INDEX (live) WHERE b.state = 'waiting'
     AND b.group_id = c.group_id AND b.`partition` = c.`partition` ORDER BY b.lo LIMIT 1)) AS waiting,
    CASE g.ordering WHEN 'none' THEN NULL
    WHEN 'partition' THEN (SELECT r.due_at <= NOW(6) FROM ems_retry r FORCE INDEX (PRIMARY)
     WHERE r.group_id = c.group_id AND r.`partition` = c.`partition` ORDER BY r.group_id, r.`partition`, r.`offset` LIMIT 1)
    ELSE NULLIF((SELECT r.due_at FROM ems_retry r FORCE INDEX (turn)
     WHERE r.group_id = c.group_id AND r.`partition` = c.`partition` AND r.claim_id IS NULL LIMIT 1) <= NOW(6), 0) END AS due,
    COALESCE(
    (SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY)
     WHERE m.topic_id = g.topic_id AND m.`partition` = c.`partition` AND m.`offset` = c.next_offset),
    (SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY)
     WHERE m.topic_id = g.topic_id AND m.`partition` = c.`partition`
     ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1)) AS head
  FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id JOIN ems_topic t ON t.id = g.topic_id
  WHERE c.group_id IN %(group_ids)s AND g.paused = 0 AND t.rule IN ('rw', 'r')
) w WHERE w.busy = 0 AND (w.due = 1 OR (w.due IS NULL AND (w.waiting = 1 OR (w.waiting IS NULL AND w.head >= w.next_offset)))))
UNION ALL
(SELECT 5, k.group_id, k.`partition`, k.`offset`, 0 FROM ems_cancel k WHERE k.group_id IN %(group_ids)s)
UNION ALL
(SELECT 3, l.group_id, 0, 0, 0 FROM ems_limit l FORCE INDEX (PRIMARY)
  WHERE l.group_id IN %(group_ids)s AND (l.per_s IS NOT NULL OR l.max_running IS NOT NULL))
UNION ALL
(SELECT 4, g.id, 0, g.held_tasks, TIMESTAMPDIFF(MICROSECOND, NOW(6),
  (SELECT r.due_at FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = g.id AND r.claim_id IS NULL LIMIT 1))
  FROM ems_group g WHERE g.id IN %(group_ids)s)
UNION ALL
(SELECT 4, g.id, 0, 0, TIMESTAMPDIFF(MICROSECOND, NOW(6),
  (SELECT p.due_at FROM ems_outbox p FORCE INDEX (PRIMARY) WHERE p.topic_id = g.topic_id ORDER BY p.topic_id, p.due_at LIMIT 1))
  FROM ems_group g WHERE g.id IN %(group_ids)s)
UNION ALL
(SELECT 4, 0, 0, 0, TIMESTAMPDIFF(MICROSECOND, NOW(6), (SELECT MIN(next_at) FROM ems_schedule WHERE paused = 0)))
