-- name: replace_rows
REPLACE INTO ems_latest (topic_id, group_id, kind, length, unclaimed, claimed, waiting, retries, running, dead, skipped, oldest_ms,
  written, topic_count, group_count, sampled_at) VALUES

-- name: row
(%(topic_id)s,%(group_id)s,%(kind)s,%(length)s,%(unclaimed)s,%(claimed)s,%(waiting)s,%(retries)s,%(running)s,%(dead)s,%(skipped)s,%(oldest_ms)s,%(written)s,%(topics)s,%(groups)s,%(sampled_at)s)

-- name: list_places
SELECT topic_id, group_id FROM ems_latest

-- name: delete_row
DELETE FROM ems_latest WHERE topic_id = %(topic_id)s AND group_id = %(group_id)s

-- name: get_stream
SELECT COALESCE(TIMESTAMPDIFF(MICROSECOND, sampled_at, NOW(6)) / 1000000, 0), unclaimed + claimed + waiting + retries, running, retries, dead, oldest_ms, topic_count, group_count, length
FROM ems_latest WHERE topic_id = 0 AND group_id = 0

-- name: list_groups
-- Those with the most lag first, along the index; with a text, or with paused, every group is looked at until enough are found.
-- The indexes are forced, because with old statistics a server may read whole tables instead.
SELECT STRAIGHT_JOIN l.topic_id, l.group_id, l.unclaimed, l.claimed, l.waiting, l.retries, l.running, l.dead, l.skipped, l.oldest_ms, l.written
FROM ems_latest l FORCE INDEX (ranked) JOIN ems_group g FORCE INDEX (PRIMARY) ON g.id = l.group_id
  JOIN ems_topic t FORCE INDEX (PRIMARY) ON t.id = g.topic_id
WHERE l.kind = 'group' AND l.length BETWEEN %(shortest)s AND %(longest)s AND g.paused IN %(paused)s AND LOCATE(%(text)s, CONCAT(t.name, '/', g.name))
{order}LIMIT %(limit)s

-- name: list_topics
-- Those that keep the most offsets first, along the index; with a text, every topic is looked at until enough are found.
SELECT STRAIGHT_JOIN l.topic_id, l.length, l.group_count FROM ems_latest l FORCE INDEX (ranked) JOIN ems_topic t FORCE INDEX (PRIMARY) ON t.id = l.topic_id
WHERE l.kind = 'topic' AND LOCATE(%(text)s, t.name) ORDER BY l.length DESC LIMIT %(limit)s
