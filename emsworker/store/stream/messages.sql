-- name: raise_counter
-- The row stays locked until the commit, so commit order is offset order and there are no holes. The counter is raised
-- past all rows, which may have been placed without it, and to at least the log start offset: no group reads below it.
UPDATE ems_partition p SET p.next_offset = LAST_INSERT_ID(GREATEST(p.next_offset, p.log_start,
  COALESCE((SELECT MAX(m.`offset`) FROM ems_message m WHERE m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s), 0) + 1)) + %(count)s
WHERE p.topic_id = %(topic_id)s AND p.`partition` = %(partition)s AND p.closed = 0

-- name: free_offset
-- The offset of the first row, which LAST_INSERT_ID() then tells: the first one that is free, as of raise_counter; NULL,
-- which the table rejects, if the partition is gone or closed. Its row stays locked until the commit, so commit order is
-- offset order and there are no holes. The rows are read after the lock is held, because they depend on the locked row.
-- Without an alias, a server refuses to read the table that it inserts into.
(SELECT LAST_INSERT_ID(GREATEST(p.next_offset, p.log_start, COALESCE((SELECT MAX(m.`offset`) FROM ems_message m WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`), 0) + 1)) FROM ems_partition p WHERE p.topic_id = %(topic_id)s AND p.`partition` = %(partition)s AND p.closed = 0 FOR UPDATE)

-- name: known_offset
-- The offset of the first row; NULL, which the table rejects, if the partition is gone or closed (the topic has moved), or
-- the offset lies below the log start offset, or so far above what is known of the end that the counter must be wrong. The
-- lock is shared, so that retention cannot raise the log start offset past us before our commit.
(SELECT IF(log_start <= %(base)s AND closed = 0 AND %(base)s <= GREATEST(next_offset, high_watermark, log_start) + %(farthest)s, %(base)s, NULL) FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s LOCK IN SHARE MODE)

-- name: insert_messages
INSERT INTO ems_message (topic_id, `partition`, `offset`, born_at, {message_columns}, producer_id, size) VALUES

-- name: message_row
(%(topic_id)s,%(partition)s,%(offset)s,NOW(6),%(message)s)

-- name: message_values
%(uid)s,%(key)s,%(tag)s,%(headers)s,%(body)s,%(producer_id)s,%(size)s

-- name: further_row
-- A row after the first one, whose offset was free_offset: `offset` counts from there.
(%(topic_id)s,%(partition)s,LAST_INSERT_ID()+%(offset)s,NOW(6),%(message)s)

-- name: find_uids
SELECT uid, `partition`, `offset` FROM ems_message WHERE topic_id = %(topic_id)s AND uid IN %(uids)s

-- name: find_next_free_offset
-- The offset after all that was ever allocated, as far as MySQL knows: rows, counter, log start offset.
SELECT GREATEST(p.next_offset, p.log_start, COALESCE((SELECT MAX(m.`offset`) FROM ems_message m WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`), 0) + 1)
FROM ems_partition p WHERE p.topic_id = %(topic_id)s AND p.`partition` = %(partition)s AND p.closed = 0

-- name: insert_tombstones
-- IGNORE, because the late producer may fill an offset at the same time: the primary key decides.
INSERT IGNORE INTO ems_message (topic_id, `partition`, `offset`, kind, headers, body, born_at) VALUES

-- name: tombstone_row
(%(topic_id)s,%(partition)s,%(offset)s,'tombstone','','',NOW(6))

-- name: find_hole
-- The first row at a cursor or after it: its offset and its age in seconds. A time that no producer of ours writes, in the
-- future or none at all, is an old one: a row with it may not keep a hole open.
SELECT m.`offset`, COALESCE(ABS(TIMESTAMPDIFF(MICROSECOND, m.born_at, NOW(6))) / 1000000, 1e9) FROM ems_message m
WHERE m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s AND m.`offset` >= %(from_offset)s ORDER BY m.`offset` LIMIT 1

-- name: get_cursor
SELECT next_offset FROM ems_cursor WHERE group_id = %(group_id)s AND `partition` = %(partition)s
