-- The stored high watermark of each partition.

-- name: list_unresolved
-- Partitions with rows above it: the offset to start at, and the one after the last row. One index dive each (see
-- list_bounds in scan.sql).
SELECT r.topic_id, r.`partition`, r.high_watermark, r.end FROM (
  SELECT p.topic_id, p.`partition`, GREATEST(p.high_watermark, p.log_start) AS high_watermark,
    COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0) + 1 AS end
  FROM ems_partition p
) r WHERE r.end > r.high_watermark

-- name: forget
SET @ems_p = NULL

-- name: lock_partition
-- Never waits for a producer: the next call comes soon.
SELECT `partition` INTO @ems_p FROM ems_partition
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s FOR UPDATE SKIP LOCKED

-- name: set_high_watermark
UPDATE ems_partition SET high_watermark = %(high_watermark)s WHERE topic_id = %(topic_id)s AND `partition` = @ems_p AND high_watermark < %(high_watermark)s
