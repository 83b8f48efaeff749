-- name: find_ends
-- Each partition's log start offset, the offset after its last row, and whether the topic may be read.
SELECT p.topic_id, p.`partition`, p.log_start, COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY)
  WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition` ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0) + 1,
  t.rule IN ('rw', 'r')
FROM ems_partition p JOIN ems_topic t ON t.id = p.topic_id WHERE p.topic_id IN %(topic_ids)s

-- name: read_sizes
-- The next rows of a partition, with the bytes of headers and bodies that will be read.
SELECT `offset`, total_size * (kind = 'message') FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(from_offset)s ORDER BY `offset` LIMIT %(limit)s

-- name: get_log_start
-- Read after the rows: retention raises the log start offset first, so what is missing below it was deleted.
SELECT log_start FROM ems_partition WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s

-- name: read_bodies
-- Fetches neither tombstones, which have nothing to run, nor what the filter excludes; headers that are damaged or
-- nested too deep match no filter (see read_wanted_bodies in claims.sql).
SELECT `offset`, {message_columns}, born_at FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` BETWEEN %(lo)s AND %(hi)s AND kind = 'message'
  AND (%(any_tag)s = 1 OR tag IN %(tags)s)
  AND (%(any_headers)s = 1 OR CASE WHEN LENGTH(SUBSTRING_INDEX(headers, '[', 50)) + LENGTH(SUBSTRING_INDEX(headers, '{', 50)) = 2 * LENGTH(headers)
    AND JSON_VALID(CONVERT(headers USING utf8mb4)) = 1 THEN JSON_CONTAINS(CONVERT(headers USING utf8mb4), %(wanted_headers)s) ELSE 0 END = 1)
ORDER BY `offset`

-- name: read_few
-- Small messages of a short range: if as many come as it has offsets, it has no hole, and nothing is left out.
SELECT `offset`, {message_columns}, born_at FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` BETWEEN %(lo)s AND %(hi)s AND kind = 'message' AND total_size <= %(most)s
ORDER BY `offset`

-- name: get_now
SELECT NOW(6)

-- name: take_position
-- A reader that ended well has signed off. If it did not, a death is counted; the count is reset when a reader gets
-- further.
INSERT INTO ems_position (topic_id, name, `partition`, next_offset, reader, deaths, stored_at)
VALUES (%(topic_id)s, %(name)s, %(partition)s, %(next_offset)s, %(reader)s, 0, NOW(6))
ON DUPLICATE KEY UPDATE deaths = IF(reader IS NULL, 0, LEAST(deaths + 1, 255)), reader = VALUES(reader)

-- name: get_positions
SELECT `partition`, next_offset, deaths FROM ems_position WHERE topic_id = %(topic_id)s AND name = %(name)s

-- name: store_position
-- Only for the reader that took the name last: earlier readers have lost it.
UPDATE ems_position SET next_offset = %(next_offset)s, deaths = 0, stored_at = NOW(6)
WHERE topic_id = %(topic_id)s AND name = %(name)s AND `partition` = %(partition)s AND reader = %(reader)s

-- name: sign_off
UPDATE ems_position SET reader = NULL, stored_at = NOW(6) WHERE topic_id = %(topic_id)s AND name = %(name)s AND reader = %(reader)s

-- name: list_positions
SELECT t.name, s.name, s.`partition`, s.next_offset,
  GREATEST(p.log_start, COALESCE((SELECT m.`offset` FROM ems_message m WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0) + 1),
  s.reader IS NOT NULL, s.stored_at, COALESCE(TIMESTAMPDIFF(MICROSECOND, s.stored_at, NOW(6)) / 1000000, 0)
FROM ems_position s JOIN ems_topic t ON t.id = s.topic_id JOIN ems_partition p ON p.topic_id = s.topic_id AND p.`partition` = s.`partition`
WHERE %(topic)s IS NULL OR t.name = %(topic)s ORDER BY t.name, s.name, s.`partition`

-- name: forget_positions
DELETE FROM ems_position WHERE topic_id = %(topic_id)s AND (%(any_name)s = 1 OR name = %(name)s)
AND stored_at <= NOW(6) - INTERVAL %(idle_s)s SECOND LIMIT 1000
