-- name: raise_counter
-- The mysql allocator: the row stays locked until the commit, so commit order is offset order and there are no holes.
-- Never below the floor: there nobody reads, and retention may have deleted rows that this counter never counted.
UPDATE ems_partition SET next_offset = LAST_INSERT_ID(GREATEST(next_offset, floor)) + %(count)s
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s

-- name: raise_counter_past_rows
-- The same when another allocator may have written rows that the counter does not know of.
UPDATE ems_partition p SET p.next_offset = LAST_INSERT_ID(GREATEST(p.next_offset, p.floor,
  COALESCE((SELECT MAX(m.`offset`) FROM ems_message m WHERE m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s), 0) + 1)) + %(count)s
WHERE p.topic_id = %(topic_id)s AND p.`partition` = %(partition)s

-- name: forget_floor
SET @ems_floor = NULL

-- name: hold_floor
-- Retention cannot raise the floor past us before our commit.
SELECT floor INTO @ems_floor FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s LOCK IN SHARE MODE

-- name: assert_above_floor
SELECT (SELECT 1 UNION ALL SELECT 2 FROM DUAL WHERE @ems_floor IS NULL OR @ems_floor > %(base)s)

-- name: insert_messages
-- Its rows are appended by the store, each a tuple of numbers and hexadecimal literals.
INSERT INTO ems_message (topic_id, `partition`, `offset`, producer_id, born_at, uid, `key`, tag, headers, body, size) VALUES

-- name: find_uids
SELECT uid, `partition`, `offset` FROM ems_message WHERE topic_id = %(topic_id)s AND uid IN %(uids)s

-- name: get_frontier
-- One past everything ever allocated, as far as MySQL knows: rows, counter, floor.
SELECT GREATEST(p.next_offset, p.floor, COALESCE((SELECT MAX(m.`offset`) FROM ems_message m WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`), 0) + 1)
FROM ems_partition p WHERE p.topic_id = %(topic_id)s AND p.`partition` = %(partition)s

-- name: insert_tombstones
-- IGNORE, because the late producer may fill an offset just now: the primary key arbitrates.
INSERT IGNORE INTO ems_message (topic_id, `partition`, `offset`, kind, headers, body, born_at) VALUES

-- name: find_hole
-- The offset at a cursor's place or after it, and how many seconds ago it was born.
SELECT m.`offset`, TIMESTAMPDIFF(MICROSECOND, m.born_at, NOW(6)) / 1000000 FROM ems_message m
WHERE m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s AND m.`offset` >= %(from_offset)s ORDER BY m.`offset` LIMIT 1

-- name: get_cursor
SELECT next_offset FROM ems_cursor WHERE group_id = %(group_id)s AND `partition` = %(partition)s
