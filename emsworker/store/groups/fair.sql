-- name: find_news
-- A partition with new messages: the one to which a hint pointed, or else any: a flood in one must not hide the others. A
-- primary key look-up for each partition. A SELECT, here and below: the SET of a subquery would wait for what other claims have locked.
SELECT (SELECT c.`partition` FROM ems_cursor c JOIN ems_message m FORCE INDEX (PRIMARY)
  ON m.topic_id = %(topic_id)s AND m.`partition` = c.`partition` AND m.`offset` = c.next_offset
  WHERE c.group_id = %(group_id)s ORDER BY c.`partition` = %(partition)s DESC, RAND() LIMIT 1) INTO @ems_news

-- name: moved_partition
@ems_news

-- name: find_head
-- The virtual time of the group: that of the first waiting message in its lanes, or the clock if there is none. The due
-- time of a message in a lane is its virtual time, a thousand years ago, so that the index of due retries has the lanes
-- in their order before anything that waits for the clock.
SELECT COALESCE((SELECT IF(r.due_at < '1900-01-01', TIMESTAMPDIFF(MICROSECOND, '1000-01-01', r.due_at), NULL)
  FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = %(group_id)s AND r.claim_id IS NULL LIMIT 1),
  TIMESTAMPDIFF(MICROSECOND, '1000-01-01', NOW(6) - INTERVAL 1000 YEAR)) INTO @ems_head

-- name: add_places
-- The first message of a key comes after the last of that key, or at the group's virtual time; the following ones a
-- microsecond later each. The last of a key is an index dive for each partition of the group, and is looked up once for
-- a key; by a sum, because for a maximum over a window MariaDB reads all of its rows for each row. Damaged headers name no key, as in read_wanted_bodies; IGNORE, or bytes that are no UTF-8 would fail the
-- statement. What the filter excludes is done.
INSERT IGNORE INTO ems_retry (group_id, `partition`, `offset`, attempt, due_at, `key`)
SELECT %(group_id)s, %(partition)s, f.`offset`, 0,
  {start} + INTERVAL (GREATEST(@ems_head, COALESCE(SUM(f.last) OVER (PARTITION BY f.lane ORDER BY f.place ROWS UNBOUNDED PRECEDING) + 1, 0)) + f.place - 1) MICROSECOND, f.lane
FROM (
  SELECT n.`offset`, n.lane, n.place, IF(n.place > 1, NULL, (
    SELECT MAX((SELECT CASE WHEN r.due_at < '1900-01-01' THEN TIMESTAMPDIFF(MICROSECOND, '1000-01-01', r.due_at)
        WHEN r.due_at >= '9000-01-01' THEN TIMESTAMPDIFF(MICROSECOND, '9000-01-01', r.due_at) END FROM ems_retry r FORCE INDEX (lane)
      WHERE r.group_id = c.group_id AND r.`partition` = c.`partition` AND r.`key` = n.lane
      ORDER BY r.group_id DESC, r.`partition` DESC, r.`key` DESC, r.`offset` DESC LIMIT 1))
    FROM ems_cursor c WHERE c.group_id = %(group_id)s)) AS last{is_first}
  FROM (
    SELECT h.`offset`, h.lane, ROW_NUMBER() OVER (PARTITION BY h.lane ORDER BY h.`offset`) AS place
    FROM (
      SELECT m.`offset`, COALESCE(CASE WHEN LENGTH(SUBSTRING_INDEX(m.headers, '[', 50)) + LENGTH(SUBSTRING_INDEX(m.headers, '{', 50)) = 2 * LENGTH(m.headers)
        AND JSON_VALID(CONVERT(m.headers USING utf8mb4)) = 1
        THEN LEFT(CAST(JSON_UNQUOTE(JSON_EXTRACT(CONVERT(m.headers USING utf8mb4), %(path)s)) AS BINARY), 255) END, '') AS lane
      FROM ems_message m
      WHERE m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s AND m.`offset` BETWEEN @ems_lo AND @ems_hi AND m.kind = 'message'
        AND (%(any_tag)s = 1 OR m.tag IN %(tags)s)
        AND (%(any_headers)s = 1 OR CASE WHEN LENGTH(SUBSTRING_INDEX(m.headers, '[', 50)) + LENGTH(SUBSTRING_INDEX(m.headers, '{', 50)) = 2 * LENGTH(m.headers)
          AND JSON_VALID(CONVERT(m.headers USING utf8mb4)) = 1 THEN JSON_CONTAINS(CONVERT(m.headers USING utf8mb4), %(wanted_headers)s) ELSE 0 END = 1)
    ) h
  ) n
) f

-- name: add_done_claim
-- The log of who claimed the range, in the transaction that moves the cursor: each offset of it is in a lane, or done.
INSERT INTO ems_claim (group_id, `partition`, lo, claim_id, hi, acked_to, state, source, isolation, client_id, claimed_at, progress_at, deadline_at)
SELECT %(group_id)s, %(partition)s, @ems_lo, %(range_id)s, @ems_hi, @ems_hi, 'done', 'stream', 0, %(client_id)s, NOW(6), NOW(6), NOW(6)
FROM DUAL WHERE @ems_hi IS NOT NULL

-- name: begin_lanes
-- After a full range more of the stream follows: nothing is taken before the last message has its place. NULL: another
-- client holds the cursor.
SET @ems_moved = IF(@ems_p IS NULL AND @ems_news IS NOT NULL AND @ems_may = 1, NULL, COALESCE(@ems_hi + 1 - @ems_lo, 0)),
  @ems_may = IF(@ems_hi + 1 - @ems_lo >= %(range)s, 0, @ems_may),
  @ems_p = NULL, @ems_lo = NULL, @ems_hi = NULL, @ems_isolation = 0, @ems_old = NULL

-- name: enter_lanes
-- Retries whose time has come, and messages that were replayed or requeued, get a place behind the head of the lanes,
-- in the order in which they are due, those of each key apart.
UPDATE (
  SELECT d.`partition`, d.`offset`, ROW_NUMBER() OVER (PARTITION BY d.lane ORDER BY d.due_at, d.`partition`, d.`offset`) AS place
  FROM (SELECT s.`partition`, s.`offset`, s.due_at, COALESCE(s.`key`, '') AS lane FROM ems_retry s FORCE INDEX (due)
    WHERE s.group_id = %(group_id)s AND s.claim_id IS NULL AND s.due_at >= '1900-01-01' AND s.due_at <= NOW(6) LIMIT 500) d
) e STRAIGHT_JOIN ems_retry r FORCE INDEX (PRIMARY) ON r.group_id = %(group_id)s AND r.`partition` = e.`partition` AND r.`offset` = e.`offset`
SET r.due_at = '1000-01-01' + INTERVAL (@ems_head + e.place - 1) MICROSECOND
WHERE r.claim_id IS NULL AND r.due_at >= '1900-01-01'

-- name: find_next
-- What other claims are just taking is passed over, or they would all wait for the commit of the first.
SELECT `partition`, `offset`, isolation, due_at INTO @ems_p, @ems_old, @ems_isolation, @ems_due FROM ems_retry FORCE INDEX (due)
WHERE @ems_may = 1 AND group_id = %(group_id)s AND claim_id IS NULL AND due_at <= NOW(6) AND isolation <= %(most_isolation)s LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: take_following
-- The found one, and those behind it: each claim waits only for claims further behind, so none for each other. A suspect
-- (isolation > 0) is taken alone.
UPDATE ems_retry FORCE INDEX (due) SET claim_id = %(claim_id)s
WHERE group_id = %(group_id)s AND claim_id IS NULL AND due_at BETWEEN CAST(@ems_due AS DATETIME(6)) AND NOW(6) AND `partition` = @ems_p
AND isolation = @ems_isolation AND (due_at > CAST(@ems_due AS DATETIME(6)) OR `offset` >= @ems_old) AND (isolation = 0 OR `offset` = @ems_old)
LIMIT %(batch)s

-- name: lock_limit
-- Claims of a group that limits its keys go one after another, so that one counts at a time.
SELECT max_running_per_key INTO @ems_per_key FROM ems_limit WHERE group_id = %(group_id)s FOR UPDATE

-- name: begin_limited
SET @ems_per_key = NULL, @ems_key = NULL

-- name: find_with_room
-- The next message whose key has room. A message runs, or is in a client's hands, exactly while its row has the id of a
-- claim; whatever ends it, and recovery if its owner dies, ends that too, so no count can leak. Of the keys that have no
-- room one message for each partition is passed over: the others are blocked.
SELECT r.`partition`, r.`offset`, r.isolation, r.due_at, COALESCE(r.`key`, '') INTO @ems_p, @ems_old, @ems_isolation, @ems_due, @ems_key
FROM ems_retry r FORCE INDEX (due)
WHERE @ems_may = 1 AND r.group_id = %(group_id)s AND r.claim_id IS NULL AND r.due_at <= NOW(6) AND r.isolation <= %(most_isolation)s
  AND (@ems_per_key IS NULL OR COALESCE(r.`key`, '') NOT IN (SELECT f.lane FROM (SELECT COALESCE(c.`key`, '') AS lane
    FROM ems_retry c FORCE INDEX (due) WHERE c.group_id = %(group_id)s AND c.claim_id IS NOT NULL
    GROUP BY COALESCE(c.`key`, '') HAVING COUNT(*) >= @ems_per_key) f))
LIMIT 1 FOR UPDATE SKIP LOCKED

-- name: unblock_next
-- The message behind the one that was taken has its place in the lane: blocked ones are due 8,000 years later.
UPDATE ems_retry FORCE INDEX (lane) SET due_at = due_at - INTERVAL 8000 YEAR
WHERE group_id = %(group_id)s AND `partition` = @ems_p AND `key` = @ems_key AND claim_id IS NULL AND due_at >= '9000-01-01' AND due_at < '9900-01-01'
ORDER BY group_id, `partition`, `key`, `offset` LIMIT 1

-- name: find_blocked_groups
-- Groups that have, or had, limits, and blocked messages now: an index dive for each.
SELECT l.group_id FROM ems_limit l WHERE (SELECT r.due_at FROM ems_retry r FORCE INDEX (due)
  WHERE r.group_id = l.group_id AND r.claim_id IS NULL AND r.due_at >= '9000-01-01' LIMIT 1) < '9900-01-01'

-- name: find_stopped_lanes
-- Lanes in which only blocked messages are left: what would have brought the next one was cancelled, skipped or taken by
-- a client that knows no limits.
SELECT k.`partition`, k.`key` FROM (SELECT DISTINCT `partition`, `key` FROM ems_retry FORCE INDEX (lane) WHERE group_id = %(group_id)s) k
WHERE (SELECT r.due_at FROM ems_retry r FORCE INDEX (lane) WHERE r.group_id = %(group_id)s AND r.`partition` = k.`partition` AND r.`key` = k.`key`
  AND r.claim_id IS NULL ORDER BY r.group_id, r.`partition`, r.`key`, r.`offset` LIMIT 1) BETWEEN '9000-01-01' AND '9900-01-01'

-- name: unblock
UPDATE ems_retry FORCE INDEX (lane) SET due_at = due_at - INTERVAL 8000 YEAR
WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `key` = %(key)s AND claim_id IS NULL AND due_at >= '9000-01-01' AND due_at < '9900-01-01'
ORDER BY group_id, `partition`, `key`, `offset` LIMIT 100

-- name: get_moved
SELECT @ems_moved
