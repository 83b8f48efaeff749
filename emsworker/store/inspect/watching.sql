-- name: get_now
-- The server's clock, in microseconds since 1970, a second ago: attempts that ended before that are committed by now.
SELECT TIMESTAMPDIFF(MICROSECOND, '1970-01-01', NOW(6)) - 1000000

-- name: count_attempts
-- The attempts of one group in a span of time that failed, and those that were not the first: one range of the index.
SELECT COALESCE(SUM(outcome IN ('failed', 'rejected', 'timeout', 'orphaned')), 0), COALESCE(SUM(attempt > 1), 0) FROM ems_attempt FORCE INDEX (recent)
WHERE group_id = %(group_id)s AND ended_at > '1970-01-01' + INTERVAL %(from_us)s MICROSECOND AND ended_at <= '1970-01-01' + INTERVAL %(to_us)s MICROSECOND
