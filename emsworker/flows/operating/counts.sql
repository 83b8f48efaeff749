-- name: list_ages
-- The flows that have not ended, a bounded number of those that were started first: one range of the index, in the order
-- of the numbers.
SELECT t.name, f.name, MAX(TIMESTAMPDIFF(MICROSECOND, f.started_at, NOW(6)) / 1000000) FROM (
  SELECT topic_id, name, started_at FROM ems_flow FORCE INDEX (ended) WHERE ended_at IS NULL ORDER BY id LIMIT %(limit)s) f
JOIN ems_topic t ON t.id = f.topic_id GROUP BY t.name, f.name
