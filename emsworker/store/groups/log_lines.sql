-- name: upsert_logs
-- All that is kept of an attempt by now; it grows while the attempt runs.
INSERT INTO ems_attempt_log (group_id, `partition`, `offset`, attempt, log_lines, left_out, written_at) VALUES

-- name: log_row
(%(group_id)s,%(partition)s,%(offset)s,%(attempt)s,%(log_lines)s,%(left_out)s,NOW(6))

-- name: upsert_logs_end
ON DUPLICATE KEY UPDATE log_lines = VALUES(log_lines), left_out = VALUES(left_out), written_at = VALUES(written_at)

-- name: delete_old
DELETE FROM ems_attempt_log WHERE written_at < NOW(6) - INTERVAL %(keep_s)s SECOND ORDER BY written_at LIMIT %(limit)s
