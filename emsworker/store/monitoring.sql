-- name: list_positions
-- Each cursor with its partition's log start offset and last offset; one index dive each, however long the stream is
-- (see list_bounds in scan.sql).
SELECT c.group_id, c.`partition`, p.log_start, c.next_offset,
  COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = g.topic_id AND m.`partition` = c.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), p.log_start - 1), c.skipped
FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id
JOIN ems_partition p ON p.topic_id = g.topic_id AND p.`partition` = c.`partition`
ORDER BY c.group_id, c.`partition`

-- name: count_claimed
-- What claims of the stream have not finished, in all and in the hands of live clients; a claim of retries is counted by
-- its retries.
SELECT c.group_id, c.`partition`, SUM(c.hi - c.acked_to), MIN(c.acked_to + 1), SUM(IF(k.client_id IS NULL, 0, c.hi - c.acked_to))
FROM ems_claim c LEFT JOIN ems_client k ON c.state = 'start' AND k.client_id = c.client_id AND k.expires_at > NOW(6)
WHERE c.state IN ('start', 'waiting') AND c.source = 'stream' GROUP BY c.group_id, c.`partition`

-- name: count_retries
SELECT group_id, `partition`, COUNT(*), MIN(`offset`) FROM ems_retry GROUP BY group_id, `partition`

-- name: count_dead
SELECT group_id, `partition`, COUNT(*) FROM ems_dead GROUP BY group_id, `partition`

-- name: get_age
-- How many seconds ago the first message from an offset on was born.
SELECT TIMESTAMPDIFF(MICROSECOND, born_at, NOW(6)) / 1000000 FROM ems_message
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(offset)s AND kind = 'message' ORDER BY `offset` LIMIT 1

-- name: list_extents
-- Each partition with its log start offset, one past its last offset, and the mean size of its last messages.
SELECT p.topic_id, p.`partition`, p.log_start,
  COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), p.log_start - 1) + 1
FROM ems_partition p ORDER BY p.topic_id, p.`partition`

-- name: count_messages
-- Of a part of a partition that is short: what is neither a tombstone nor cancelled.
SELECT COUNT(*) FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(from_offset)s AND kind = 'message'

-- name: count_sample
SELECT COUNT(*) FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s AND kind = 'message'

-- name: get_mean_size
-- Of the last 200 messages: an estimate that costs the same however long the stream is.
SELECT AVG(IF(kind = 'message', size, NULL)) FROM (SELECT size, kind FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(from_offset)s
  ORDER BY `offset` DESC LIMIT 200) m

-- name: count_by_client
-- What each client holds at present.
SELECT client_id, COUNT(*) FROM ems_claim WHERE state = 'start' GROUP BY client_id
