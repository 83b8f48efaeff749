-- name: list_backlogs
-- Each cursor with its partition's last offset and its first retry: index dives only, whatever the backlog.
SELECT t.name, g.name, g.id, t.id, g.paused = 1 OR t.rule NOT IN ('rw', 'r'), c.`partition`, c.next_offset,
  COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = t.id AND m.`partition` = c.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0),
  (SELECT r.`offset` FROM ems_retry r FORCE INDEX (PRIMARY) WHERE r.group_id = g.id AND r.`partition` = c.`partition`
    ORDER BY r.group_id, r.`partition`, r.`offset` LIMIT 1)
FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id JOIN ems_topic t ON t.id = g.topic_id

-- name: list_claims
-- Live claims only, of which there are few. A claim that is held back (not_before) counts as one that is worked on.
SELECT group_id, `partition`, SUM(IF(source = 'stream', hi - acked_to, 0)), MIN(IF(source = 'stream', acked_to + 1, NULL)), 
  SUM(state = 'start' OR COALESCE(not_before > NOW(6), 0)),
  COALESCE(MAX(IF(state = 'start', TIMESTAMPDIFF(MICROSECOND, progress_at, NOW(6)) / 1000000, 0)), 0)
FROM ems_claim FORCE INDEX (live) WHERE state IN ('start', 'waiting') GROUP BY group_id, `partition`

-- name: get_age
SELECT COALESCE(TIMESTAMPDIFF(MICROSECOND, born_at, NOW(6)) / 1000000, 0) FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(offset)s AND kind = 'message' ORDER BY `offset` LIMIT 1

-- name: count_retries
-- Counts at most up to the rule's limit.
SELECT COUNT(*) FROM (SELECT 1 FROM ems_retry FORCE INDEX (PRIMARY) WHERE group_id = %(group_id)s LIMIT %(limit)s) r

-- name: count_dead
SELECT COUNT(*) FROM (SELECT 1 FROM ems_dead FORCE INDEX (recent)
  WHERE group_id = %(group_id)s AND dead_at > NOW(6) - INTERVAL %(within_s)s SECOND LIMIT %(limit)s) d

-- name: count_attempts
-- The attempts in a span of time that failed, and those that were not a message's first: one range of the index. The
-- span is a second late: attempts that ended before that are committed by now.
SELECT COALESCE(SUM(outcome IN ('failed', 'rejected', 'timeout', 'orphaned')), 0), COALESCE(SUM(attempt > 1), 0) FROM ems_attempt FORCE INDEX (recent)
WHERE group_id = %(group_id)s AND ended_at > %(since)s - INTERVAL 1 SECOND AND ended_at <= %(until)s - INTERVAL 1 SECOND
