-- Rows at offsets that no counter can have reached.

-- name: list_far
-- Partitions whose last row lies far above the stored high watermark: that one, and the offset after the row. One index
-- dive each (see list_bounds in scan.sql).
SELECT r.topic_id, r.`partition`, r.high_watermark, r.end FROM (
  SELECT p.topic_id, p.`partition`, GREATEST(p.high_watermark, p.log_start) AS high_watermark,
    COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0) + 1 AS end
  FROM ems_partition p
) r WHERE r.end > r.high_watermark + %(farthest)s

-- name: list_worn
-- Partitions whose counter is so far that the constraints refuse the next messages: nobody can write a row that would
-- show it.
SELECT topic_id, `partition`, next_offset FROM ems_partition WHERE closed = 0 AND next_offset > %(last)s

-- name: lock_partition
-- No publisher takes an offset meanwhile; those whose offsets come from elsewhere meet the primary key.
SELECT 1 FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND closed = 0 FOR UPDATE

-- name: bring_back
UPDATE ems_message SET `offset` = `offset` - %(distance)s
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(stray)s ORDER BY `offset` LIMIT %(rows)s

-- name: set_counter
-- Down too, which nothing else may do: under the lock, to the end of what is there.
UPDATE ems_partition p SET p.next_offset = GREATEST(p.log_start, COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY)
  WHERE m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0) + 1)
WHERE p.topic_id = %(topic_id)s AND p.`partition` = %(partition)s

-- name: bring_cursors_back
-- Those of groups that were created meanwhile, at what was then the end.
UPDATE ems_cursor c JOIN ems_group g ON g.id = c.group_id JOIN ems_partition p ON p.topic_id = g.topic_id AND p.`partition` = c.`partition`
SET c.next_offset = LEAST(c.next_offset, p.next_offset) WHERE g.topic_id = %(topic_id)s AND c.`partition` = %(partition)s

-- name: bring_positions_back
UPDATE ems_position s JOIN ems_partition p ON p.topic_id = s.topic_id AND p.`partition` = s.`partition`
SET s.next_offset = LEAST(s.next_offset, p.next_offset) WHERE s.topic_id = %(topic_id)s AND s.`partition` = %(partition)s
