-- name: list_backlogs
-- Each cursor of the groups with its partition's last offset: index dives only, whatever the backlog. A group that is
-- paused, or whose topic may not be read, starts nothing.
SELECT g.id, t.id, g.paused = 1 OR t.rule NOT IN ('rw', 'r'), c.`partition`, c.next_offset,
  COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = t.id AND m.`partition` = c.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0)
FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id JOIN ems_topic t ON t.id = g.topic_id WHERE g.id IN %(group_ids)s

-- name: list_claims
-- Live claims by state, of which there are few. One that is held back (not_before) waits for nobody.
SELECT c.group_id, c.`partition`, c.state, SUM(IF(c.source = 'stream', c.hi - c.acked_to, 0)), MIN(IF(c.source = 'stream', c.acked_to + 1, NULL))
FROM ems_claim c FORCE INDEX (live) WHERE c.state IN ('start', 'waiting') AND c.group_id IN %(group_ids)s
AND (c.not_before IS NULL OR c.not_before <= NOW(6)) GROUP BY c.group_id, c.`partition`, c.state

-- name: list_busy
-- Workers that hold claims of the groups: their names, and their threads that hold one.
SELECT c.group_id, k.name, COUNT(DISTINCT k.client_id) FROM ems_claim c FORCE INDEX (live) JOIN ems_client k ON k.client_id = c.client_id
WHERE c.state = 'start' AND c.group_id IN %(group_ids)s AND k.expires_at > NOW(6) GROUP BY c.group_id, k.name

-- name: count_threads
-- The threads of each worker.
SELECT name, COUNT(*) FROM ems_client WHERE expires_at > NOW(6) GROUP BY name

-- name: count_retries
-- All of a group, as far as a limit.
SELECT COUNT(*) FROM (SELECT 1 FROM ems_retry FORCE INDEX (PRIMARY) WHERE group_id = %(group_id)s LIMIT %(limit)s) r

-- name: count_due
-- Those of a group that are due, as far as a limit, and for how long the first has been; see fair.sql for those in lanes.
SELECT COUNT(*), COALESCE(MAX(late_us), 0) / 1000000 FROM (SELECT
    TIMESTAMPDIFF(MICROSECOND, IF(due_at < '1900-01-01', due_at + INTERVAL 1000 YEAR, due_at), NOW(6)) AS late_us FROM ems_retry FORCE INDEX (due)
  WHERE group_id = %(group_id)s AND claim_id IS NULL AND due_at <= NOW(6) LIMIT %(limit)s) r

-- name: get_age
-- The age in seconds of the first message at or after an offset.
SELECT COALESCE(TIMESTAMPDIFF(MICROSECOND, born_at, NOW(6)) / 1000000, 0) FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(offset)s AND kind = 'message' ORDER BY `offset` LIMIT 1
