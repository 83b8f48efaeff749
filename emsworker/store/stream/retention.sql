-- name: list_kept_for_a_time
-- Partitions of topics from which messages may ever be deleted.
SELECT t.id, t.name, p.`partition`, t.retention_s, t.keep_done_s, t.age_wins, t.archive_first, p.log_start, p.trimmed,
  (SELECT COUNT(*) FROM ems_group g WHERE g.topic_id = t.id)
FROM ems_topic t JOIN ems_partition p ON p.topic_id = t.id
WHERE t.retention_s IS NOT NULL OR t.keep_done_s IS NOT NULL ORDER BY t.id, p.`partition`

-- name: list_due
-- Those of list_kept_for_a_time with something to do: rows below the log start offset, or a first row that is old enough,
-- or that may be done while no mark waits for its time. One index dive for each, so that a round over ten thousand
-- topics that keep everything is one statement. Rows are deleted by age in portions, of what a tenth of the retention
-- brings, or a minute: a few are as dear as many.
SELECT t.id, t.name, p.`partition`, t.retention_s, t.keep_done_s, t.age_wins, t.archive_first, p.log_start, p.trimmed,
  (SELECT COUNT(*) FROM ems_group g WHERE g.topic_id = t.id)
FROM ems_topic t JOIN ems_partition p ON p.topic_id = t.id
WHERE (t.retention_s IS NOT NULL OR t.keep_done_s IS NOT NULL) AND t.archive_first = 0 AND (p.trimmed < p.log_start OR
  (SELECT m.born_at FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
    AND m.`offset` >= p.log_start ORDER BY m.topic_id, m.`partition`, m.`offset` LIMIT 1)
  <= NOW(6) - INTERVAL IF(t.keep_done_s IS NOT NULL AND (p.done_below <= p.log_start OR p.done_at <= NOW(6) - INTERVAL t.keep_done_s SECOND),
    0, t.retention_s + LEAST(t.retention_s / 10, 60)) SECOND)
ORDER BY t.id, p.`partition`

-- name: list_endless
-- Topics of this server that nothing is ever deleted from, the longest first, and how many offsets they have.
SELECT t.name, SUM(GREATEST(COALESCE((SELECT m.`offset` FROM ems_message m WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
  ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0) + 1, p.log_start) - p.log_start) AS offsets
FROM ems_topic t JOIN ems_partition p ON p.topic_id = t.id
WHERE t.retention_s IS NULL AND t.keep_done_s IS NULL AND t.server IS NULL GROUP BY t.id, t.name ORDER BY offsets DESC, t.name

-- name: list_unheard
-- The first message of a partition, if it is a call for a group that does not exist, and another group has passed it
-- over: it holds up the deletion of everything behind it.
SELECT DISTINCT t.name, SUBSTRING_INDEX(SUBSTRING_INDEX(m.headers, %(of_group)s, -1), '"', 1) AS missing
FROM ems_topic t JOIN ems_partition p ON p.topic_id = t.id
JOIN ems_message m ON m.topic_id = p.topic_id AND m.`partition` = p.`partition` AND m.`offset` = p.log_start
WHERE t.server IS NULL AND t.age_wins = 0 AND (t.retention_s IS NOT NULL OR t.keep_done_s IS NOT NULL)
AND m.kind = 'message' AND INSTR(m.headers, %(of_group)s) > 0 AND NOT EXISTS (SELECT 1 FROM ems_group g
  WHERE g.topic_id = t.id AND CAST(g.name AS BINARY) = SUBSTRING_INDEX(SUBSTRING_INDEX(m.headers, %(of_group)s, -1), '"', 1))
AND EXISTS (SELECT 1 FROM ems_group g JOIN ems_cursor c ON c.group_id = g.id AND c.`partition` = p.`partition`
  WHERE g.topic_id = t.id AND c.next_offset > p.log_start) ORDER BY t.name, missing LIMIT 100

-- name: list_topics_with_restored
SELECT DISTINCT r.topic_id FROM ems_restored r JOIN ems_topic t ON t.id = r.topic_id
WHERE (t.retention_s IS NOT NULL OR t.keep_done_s IS NOT NULL) AND t.archive_first = 0

-- name: find_end_of_old
-- The end of the rows, from the log start offset on, that are all older than the retention and wait for no group that is
-- yet to be created: a call for it is not done, though every group that there is has passed it over. NULL if there are
-- no rows.
SELECT COALESCE(MIN(IF(m.needed, m.`offset`, NULL)), MAX(m.`offset`) + 1) FROM (
  SELECT `offset`, born_at > NOW(6) - INTERVAL %(retention_s)s SECOND OR (%(age_wins)s = 0 AND kind = 'message' AND INSTR(headers, %(of_group)s) > 0
    AND SUBSTRING_INDEX(SUBSTRING_INDEX(headers, %(of_group)s, -1), '"', 1) NOT IN %(names)s) AS needed FROM ems_message
  WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(log_start)s ORDER BY `offset` LIMIT %(limit)s) m

-- name: list_cursors
SELECT g.id FROM ems_group g JOIN ems_cursor c ON c.group_id = g.id AND c.`partition` = %(partition)s WHERE g.topic_id = %(topic_id)s

-- name: list_group_names
SELECT name FROM ems_group WHERE topic_id = %(topic_id)s

-- name: lock_cursors
-- For topics where age wins over unclaimed messages: while these locks are held, no message is claimed. Lock order as
-- in a claim: cursors before the partition's row.
SELECT group_id FROM ems_cursor WHERE group_id IN %(overtaken)s AND `partition` = %(partition)s ORDER BY group_id FOR UPDATE

-- name: lock_partition
-- A transaction that adds a cursor or requeues a dead letter reads the log start offset under a shared lock of this
-- row, so no group comes to need more messages meanwhile.
SELECT log_start INTO @ems_log_start FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s FOR UPDATE

-- name: find_needed
-- The lowest offset that some group still needs: not claimed (unless the group may be overtaken), not finished, or to
-- be run again; or that a reader holds. One statement, so one snapshot: a message moves from cursor to claim to retry in transactions, and is
-- seen in one of them.
SELECT MIN(needed.`offset`) INTO @ems_needed FROM (
  SELECT c.next_offset AS `offset` FROM ems_group g JOIN ems_cursor c ON c.group_id = g.id AND c.`partition` = %(partition)s
  WHERE g.topic_id = %(topic_id)s AND g.id NOT IN %(overtaken)s
  UNION ALL
  SELECT c.acked_to + 1 FROM ems_group g JOIN ems_claim c FORCE INDEX (live) ON c.state IN ('start', 'waiting') AND c.group_id = g.id
  WHERE g.topic_id = %(topic_id)s AND c.`partition` = %(partition)s AND c.source = 'stream'
  UNION ALL
  SELECT (SELECT r.`offset` FROM ems_retry r FORCE INDEX (PRIMARY) WHERE r.group_id = g.id AND r.`partition` = %(partition)s
    ORDER BY r.group_id, r.`partition`, r.`offset` LIMIT 1) FROM ems_group g WHERE g.topic_id = %(topic_id)s
  UNION ALL
  SELECT h.held_from FROM ems_hold h WHERE h.topic_id = %(topic_id)s AND h.`partition` = %(partition)s AND h.lost_at IS NULL
) needed

-- name: plan_log_start
-- After find_needed: the log start offset that raise_log_start would set.
SELECT LEAST(%(log_start)s, COALESCE(@ems_needed, %(log_start)s))

-- name: raise_log_start
UPDATE ems_partition SET log_start = LEAST(%(log_start)s, COALESCE(@ems_needed, %(log_start)s))
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND log_start < LEAST(%(log_start)s, COALESCE(@ems_needed, %(log_start)s))

-- name: mark_done
-- Remember what every group has run by now, and since when that is known: a mark, so that no message needs a time of its
-- own. The next one is set when the log start offset has reached this one.
UPDATE ems_partition SET done_below = @ems_needed, done_at = NOW(6) WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s
AND (done_below <= log_start OR %(keep_done_s)s = 0) AND @ems_needed > log_start

-- name: plan_over_done
-- After find_needed: the log start offset that mark_done and raise_over_done would set.
SELECT LEAST(%(log_start)s, @ems_needed, IF(%(keep_done_s)s = 0, @ems_needed, done_below)) FROM ems_partition
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND (%(keep_done_s)s = 0 OR done_at <= NOW(6) - INTERVAL %(keep_done_s)s SECOND)

-- name: raise_over_done
-- Up to the mark, once it is old enough, and never past what a group needs again since.
UPDATE ems_partition SET log_start = LEAST(%(log_start)s, @ems_needed, done_below)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND done_at <= NOW(6) - INTERVAL %(keep_done_s)s SECOND
AND log_start < LEAST(%(log_start)s, @ems_needed, done_below)

-- name: read_log_start
SELECT log_start INTO @ems_log_start FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s

-- name: list_overtaken
SELECT g.name, @ems_log_start - c.next_offset FROM ems_cursor c LEFT JOIN ems_group g ON g.id = c.group_id
WHERE c.group_id IN %(overtaken)s AND c.`partition` = %(partition)s AND c.next_offset < @ems_log_start
ORDER BY c.group_id

-- name: add_skips
INSERT INTO ems_skip (group_id, `partition`, lo, hi, reason, skipped_at)
SELECT group_id, `partition`, next_offset, @ems_log_start - 1, 'retention', NOW(6) FROM ems_cursor
WHERE group_id IN %(overtaken)s AND `partition` = %(partition)s AND next_offset < @ems_log_start

-- name: skip_cursors
UPDATE ems_cursor SET skipped = skipped + @ems_log_start - next_offset, next_offset = @ems_log_start
WHERE group_id IN %(overtaken)s AND `partition` = %(partition)s AND next_offset < @ems_log_start

-- name: delete_messages
-- A range of the primary key with both ends known: rows that purge has not removed yet are never scanned again.
DELETE FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s
AND NOT EXISTS (SELECT 1 FROM ems_restored s WHERE s.topic_id = ems_message.topic_id AND s.`partition` = ems_message.`partition` AND s.`offset` = ems_message.`offset`)

-- name: delete_claims
-- Claims that end below; a claim that reaches higher is deleted with the next batch.
DELETE FROM ems_claim WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND lo < %(end)s AND hi < %(end)s AND state = 'done' LIMIT 1000

-- name: delete_attempts
-- The attempts of a dead letter are kept.
DELETE FROM ems_attempt WHERE group_id = %(group_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s
AND NOT EXISTS (SELECT 1 FROM ems_dead d WHERE d.group_id = ems_attempt.group_id AND d.`partition` = ems_attempt.`partition` AND d.`offset` = ems_attempt.`offset`)

-- name: set_trimmed
UPDATE ems_partition SET trimmed = %(end)s WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND trimmed < %(end)s

-- name: list_groups
SELECT id FROM ems_group WHERE topic_id = %(topic_id)s

-- name: list_restored
-- Messages of dead letters that were requeued or deleted, below the log start offset, and that no group has to run any
-- more. Messages above `trimmed` are yet to be deleted with their neighbours, and perhaps archived before.
SELECT s.`partition`, s.`offset` FROM ems_restored s JOIN ems_partition p ON p.topic_id = s.topic_id AND p.`partition` = s.`partition`
WHERE s.topic_id = %(topic_id)s AND s.`offset` < p.trimmed AND NOT EXISTS (
  SELECT 1 FROM ems_group g JOIN ems_retry r ON r.group_id = g.id AND r.`partition` = s.`partition` AND r.`offset` = s.`offset`
  WHERE g.topic_id = s.topic_id) LIMIT 100

-- name: lock_restored
SELECT `offset` FROM ems_restored WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s FOR UPDATE

-- name: find_retry_at
SELECT group_id FROM ems_retry WHERE group_id IN %(group_ids)s AND `partition` = %(partition)s AND `offset` = %(offset)s LIMIT 1

-- name: find_attempts_at
SELECT group_id FROM ems_attempt WHERE group_id IN %(group_ids)s AND `partition` = %(partition)s AND `offset` = %(offset)s
AND NOT EXISTS (SELECT 1 FROM ems_dead d WHERE d.group_id = ems_attempt.group_id AND d.`partition` = ems_attempt.`partition` AND d.`offset` = ems_attempt.`offset`) LIMIT 1

-- name: delete_attempts_at
-- The attempts of a dead letter of another group are kept.
DELETE FROM ems_attempt WHERE group_id IN %(group_ids)s AND `partition` = %(partition)s AND `offset` = %(offset)s
AND NOT EXISTS (SELECT 1 FROM ems_dead d WHERE d.group_id = ems_attempt.group_id AND d.`partition` = ems_attempt.`partition` AND d.`offset` = ems_attempt.`offset`)

-- name: delete_message
DELETE FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s

-- name: delete_restored
DELETE FROM ems_restored WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s

-- name: get_log_start
SELECT log_start FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s
