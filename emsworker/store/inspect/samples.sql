-- name: insert_samples
-- IGNORE: two beats may lead for a moment, and one sample of a time is enough.
INSERT IGNORE INTO ems_sample (topic_id, group_id, sampled_at, unclaimed, claimed, waiting, retries, running, dead, oldest_ms, written, finished) VALUES

-- name: sample_row
(%(topic_id)s,%(group_id)s,%(sampled_at)s,%(unclaimed)s,%(claimed)s,%(waiting)s,%(retries)s,%(running)s,%(dead)s,%(oldest_ms)s,%(written)s,%(finished)s)

-- name: delete_old
DELETE FROM ems_sample WHERE sampled_at < NOW(6) - INTERVAL %(keep_s)s SECOND ORDER BY sampled_at LIMIT %(limit)s

-- name: find_round
-- When samples were taken last: that of the stream is always written.
SELECT sampled_at FROM ems_sample WHERE topic_id = 0 AND group_id = 0 ORDER BY topic_id DESC, group_id DESC, sampled_at DESC LIMIT 1

-- name: list_latest
-- What held for each group at a time: its last sample until then, or else its first one. Two dives into the index for each.
SELECT l.topic_id, l.group_id, s.sampled_at, s.unclaimed, s.claimed, s.waiting, s.retries, s.running, s.dead,
  s.unclaimed + s.claimed + s.waiting + s.retries, s.oldest_ms, s.written, s.finished
FROM (SELECT g.topic_id, g.id AS group_id, COALESCE(
    (SELECT n.sampled_at FROM ems_sample n FORCE INDEX (PRIMARY) WHERE n.topic_id = g.topic_id AND n.group_id = g.id
      AND n.sampled_at <= %(at)s ORDER BY n.topic_id DESC, n.group_id DESC, n.sampled_at DESC LIMIT 1),
    (SELECT f.sampled_at FROM ems_sample f FORCE INDEX (PRIMARY) WHERE f.topic_id = g.topic_id AND f.group_id = g.id
      ORDER BY f.topic_id, f.group_id, f.sampled_at LIMIT 1)) AS sampled_at FROM ems_group g {where_group}) l
STRAIGHT_JOIN ems_sample s ON s.topic_id = l.topic_id AND s.group_id = l.group_id AND s.sampled_at = l.sampled_at

-- name: read_series
-- One range of the primary key, thinned to one row for each step: the highest values, and the time of the last sample.
SELECT FLOOR(TIMESTAMPDIFF(MICROSECOND, %(since)s, sampled_at) / %(step_us)s) AS step, MAX(sampled_at), MAX(unclaimed), MAX(claimed), MAX(waiting),
  MAX(retries), MAX(running), MAX(dead), MAX(unclaimed + claimed + waiting + retries), MAX(oldest_ms), MAX(written), MAX(finished) FROM ems_sample
WHERE topic_id = %(topic_id)s AND group_id = %(group_id)s AND sampled_at >= %(since)s AND sampled_at < %(until)s
GROUP BY step ORDER BY step

-- name: read_samples
-- Single samples, whose values hold until the next ones.
SELECT sampled_at, unclaimed, claimed, waiting, retries, running, dead, unclaimed + claimed + waiting + retries, oldest_ms, written, finished
FROM ems_sample WHERE topic_id = %(topic_id)s AND group_id = %(group_id)s AND sampled_at IN %(times)s

-- name: read_before
-- The values that held at the beginning of a series.
SELECT unclaimed, claimed, waiting, retries, running, dead, unclaimed + claimed + waiting + retries, oldest_ms, written, finished
FROM ems_sample WHERE topic_id = %(topic_id)s AND group_id = %(group_id)s AND sampled_at < %(since)s
ORDER BY topic_id DESC, group_id DESC, sampled_at DESC LIMIT 1

-- name: list_rounds
-- In which steps of a series samples were taken at all, and when last.
SELECT FLOOR(TIMESTAMPDIFF(MICROSECOND, %(since)s, sampled_at) / %(step_us)s) AS step, MAX(sampled_at) FROM ems_sample
WHERE topic_id = 0 AND group_id = 0 AND sampled_at >= %(since)s AND sampled_at < %(until)s GROUP BY step
