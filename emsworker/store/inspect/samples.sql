-- name: insert_samples
-- IGNORE: two beats may lead for a moment, and one sample of a time is enough.
INSERT IGNORE INTO ems_sample (topic_id, group_id, sampled_at, unclaimed, claimed, waiting, retries, running, dead, oldest_ms, written, finished) VALUES

-- name: sample_row
(%(topic_id)s,%(group_id)s,%(sampled_at)s,%(unclaimed)s,%(claimed)s,%(waiting)s,%(retries)s,%(running)s,%(dead)s,%(oldest_ms)s,%(written)s,%(finished)s)

-- name: delete_old
DELETE FROM ems_sample WHERE sampled_at < NOW(6) - INTERVAL %(keep_s)s SECOND ORDER BY sampled_at LIMIT %(limit)s

-- name: find_rounds
-- The times of the latest samples, and of those a minute before: two dives into the index.
SELECT m.latest, (SELECT s.sampled_at FROM ems_sample s FORCE INDEX (sampled) WHERE s.sampled_at >= m.latest - INTERVAL 65 SECOND
  ORDER BY s.sampled_at LIMIT 1) FROM (SELECT MAX(sampled_at) AS latest FROM ems_sample) m

-- name: list_round
-- The samples of all groups that were taken at once.
SELECT topic_id, group_id, sampled_at, unclaimed, claimed, waiting, retries, running, dead, unclaimed + claimed + waiting + retries, oldest_ms,
  written, finished FROM ems_sample FORCE INDEX (sampled) WHERE sampled_at = %(sampled_at)s

-- name: read_series
-- One range of the primary key, thinned to one row for each step: the highest values, and the time of the last sample.
SELECT FLOOR(TIMESTAMPDIFF(MICROSECOND, %(since)s, sampled_at) / %(step_us)s) AS step, MAX(sampled_at), MAX(unclaimed), MAX(claimed), MAX(waiting),
  MAX(retries), MAX(running), MAX(dead), MAX(unclaimed + claimed + waiting + retries), MAX(oldest_ms), MAX(written), MAX(finished) FROM ems_sample
WHERE topic_id = %(topic_id)s AND group_id = %(group_id)s AND sampled_at >= %(since)s AND sampled_at < %(until)s
GROUP BY step ORDER BY step
