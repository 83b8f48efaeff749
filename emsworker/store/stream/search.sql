-- name: list_messages
-- A range of the primary key, so that no statement runs long, whatever is selected; without bodies. First the group's
-- filter, then the predicate's conditions on plain columns. They use no index and only save the client's time.
SELECT `offset`, uid, `key`, tag, LEFT(headers, %(header_bytes)s), size, born_at, producer_id FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s AND kind = 'message'
  AND (%(any_tag)s = 1 OR tag IN %(tags)s)
  AND (%(any_headers)s = 1 OR CASE WHEN LENGTH(SUBSTRING_INDEX(headers, '[', 50)) + LENGTH(SUBSTRING_INDEX(headers, '{', 50)) = 2 * LENGTH(headers)
    AND JSON_VALID(CONVERT(headers USING utf8mb4)) = 1 THEN JSON_CONTAINS(CONVERT(headers USING utf8mb4), %(wanted_headers)s) ELSE 0 END = 1)
  AND (%(any_of_keys)s = 1 OR `key` IN %(keys)s) AND (%(any_of_tags)s = 1 OR tag IN %(wanted_tags)s)
  AND (%(key_prefix)s = '' OR LEFT(`key`, LENGTH(%(key_prefix)s)) = %(key_prefix)s)
  AND (%(any_time)s = 1 OR born_at BETWEEN %(born_from)s AND %(born_to)s)
ORDER BY `offset`

-- name: list_wanted
-- The messages of a range that pass the group's filter.
SELECT `offset`, born_at FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(start)s AND `offset` < %(end)s AND kind = 'message'
  AND (%(any_tag)s = 1 OR tag IN %(tags)s)
  AND (%(any_headers)s = 1 OR CASE WHEN LENGTH(SUBSTRING_INDEX(headers, '[', 50)) + LENGTH(SUBSTRING_INDEX(headers, '{', 50)) = 2 * LENGTH(headers)
    AND JSON_VALID(CONVERT(headers USING utf8mb4)) = 1 THEN JSON_CONTAINS(CONVERT(headers USING utf8mb4), %(wanted_headers)s) ELSE 0 END = 1)
ORDER BY `offset`

-- name: read_bodies
SELECT `offset`, LEFT(body, %(body_bytes)s) FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` IN %(offsets)s AND kind = 'message'

-- name: list_extents
-- Each partition with its log start offset and one past its last row.
SELECT p.`partition`, p.log_start, GREATEST(p.log_start, COALESCE((SELECT m.`offset` + 1 FROM ems_message m FORCE INDEX (PRIMARY)
  WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`
  ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), p.log_start))
FROM ems_partition p WHERE p.topic_id = %(topic_id)s ORDER BY p.`partition`

-- name: find_outbox
-- Those of the uids that are still in the outbox.
SELECT uid FROM ems_outbox WHERE topic_id = %(topic_id)s AND uid IN %(uids)s

-- name: read_sent
-- A message by its uid, wherever it is; one statement, because the relay moves it from the one table to the other.
SELECT o.topic_id, o.headers, o.body, o.created_at FROM ems_outbox o WHERE o.topic_id IN %(topic_ids)s AND o.uid = %(uid)s
UNION ALL SELECT m.topic_id, m.headers, m.body, m.born_at FROM ems_message m
WHERE m.topic_id IN %(topic_ids)s AND m.uid = %(uid)s AND m.kind = 'message' LIMIT 1
