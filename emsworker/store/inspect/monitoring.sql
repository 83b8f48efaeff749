-- name: list_positions
-- Each cursor with its partition's log start offset and last offset; one index dive per row, however long the stream is
-- (see list_bounds in scan.sql).
SELECT c.group_id, c.`partition`, p.log_start, c.next_offset,
  GREATEST(p.log_start - 1, COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = g.topic_id AND m.`partition` = c.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0)), c.skipped
FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id
JOIN ems_partition p ON p.topic_id = g.topic_id AND p.`partition` = c.`partition`
{where_c}ORDER BY c.group_id, c.`partition`

-- name: list_positions_and_more
-- As list_positions, with the first retry of each place, and whether the group has any dead letter: index dives only.
SELECT c.group_id, c.`partition`, p.log_start, c.next_offset,
  GREATEST(p.log_start - 1, COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = g.topic_id AND m.`partition` = c.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0)), c.skipped,
  (SELECT r.`offset` FROM ems_retry r FORCE INDEX (PRIMARY) WHERE r.group_id = c.group_id AND r.`partition` = c.`partition`
    ORDER BY r.group_id, r.`partition`, r.`offset` LIMIT 1),
  EXISTS (SELECT 1 FROM ems_dead d FORCE INDEX (recent) WHERE d.group_id = c.group_id)
FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id
JOIN ems_partition p ON p.topic_id = g.topic_id AND p.`partition` = c.`partition`
{where_c}ORDER BY c.group_id, c.`partition`

-- name: count_some_retries
-- By partition, of the first rows of a group in the index.
SELECT `partition`, COUNT(*) FROM (SELECT `partition` FROM ems_retry FORCE INDEX (due) WHERE group_id = %(group_id)s LIMIT %(most)s) r GROUP BY `partition`

-- name: count_some_dead
SELECT `partition`, COUNT(*) FROM (SELECT `partition` FROM ems_dead FORCE INDEX (recent) WHERE group_id = %(group_id)s LIMIT %(most)s) d GROUP BY `partition`

-- name: count_running
-- The live claims of each group, of which there are few.
SELECT group_id, COUNT(*) FROM ems_claim FORCE INDEX (live) WHERE state = 'start' {and_group}GROUP BY group_id

-- name: list_held_back
-- Groups with a claim that waits for a permit of a limit.
SELECT DISTINCT group_id FROM ems_claim FORCE INDEX (live) WHERE state = 'waiting' AND not_before > NOW(6)

-- name: count_claimed
-- Unfinished offsets in claims of the stream: in all, their lowest, and those held by live clients. Claims of retries
-- are counted by their retries.
SELECT c.group_id, c.`partition`, SUM(c.hi - c.acked_to), MIN(c.acked_to + 1), SUM(IF(k.client_id IS NULL, 0, c.hi - c.acked_to))
FROM ems_claim c FORCE INDEX (live) LEFT JOIN ems_client k ON c.state = 'start' AND k.client_id = c.client_id AND k.expires_at > NOW(6)
WHERE c.state IN ('start', 'waiting') AND c.source = 'stream' {and_c}GROUP BY c.group_id, c.`partition`

-- name: count_retries
SELECT group_id, `partition`, COUNT(*), MIN(`offset`) FROM ems_retry {where_group}GROUP BY group_id, `partition`

-- name: count_dead
SELECT group_id, `partition`, COUNT(*) FROM ems_dead {where_group}GROUP BY group_id, `partition`

-- name: get_age
-- The age in seconds of the first message at or after an offset. The index is forced, because with old statistics a
-- server may read the whole topic.
SELECT COALESCE(TIMESTAMPDIFF(MICROSECOND, born_at, NOW(6)) / 1000000, 0) FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(offset)s AND kind = 'message' ORDER BY `offset` LIMIT 1

-- name: list_extents
-- Each partition with its log start offset and one past its last offset.
SELECT p.topic_id, p.`partition`, p.log_start,
  GREATEST(p.log_start, COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0) + 1)
FROM ems_partition p {where_topic}ORDER BY p.topic_id, p.`partition`

-- name: count_messages
-- For a short partition: rows that are neither tombstones nor cancelled.
SELECT COUNT(*) FROM ems_message FORCE INDEX (PRIMARY) WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(from_offset)s AND kind = 'message'

-- name: count_sample
SELECT COUNT(*) FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s AND kind = 'message'

-- name: get_mean_size
-- Over the last 200 rows: an estimate that costs the same however long the stream is.
SELECT AVG(IF(kind = 'message', size, NULL)) FROM (SELECT size, kind FROM ems_message FORCE INDEX (PRIMARY) WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(from_offset)s
  ORDER BY `offset` DESC LIMIT 200) m

-- name: count_by_client
-- The claims that each client holds now, by group.
SELECT client_id, group_id, COUNT(*) FROM ems_claim WHERE state = 'start' GROUP BY client_id, group_id
