-- name: put_results
-- A success is never overwritten: a lost worker, whose task another one has finished meanwhile, may still store its own
-- outcome. Assignments are made from left to right: the first one decides, and the others follow it.
INSERT INTO ems_celery_result (name, is_final, body, expires_at) VALUES

-- name: result_row
(%(key)s,%(is_final)s,%(body)s,NOW(6) + INTERVAL %(ttl_s)s SECOND)

-- name: put_results_end
ON DUPLICATE KEY UPDATE is_final = IF(is_final AND (expires_at IS NULL OR expires_at > NOW(6)), 2, VALUES(is_final)),
  body = IF(is_final = 2, body, VALUES(body)), expires_at = IF(is_final = 2, expires_at, VALUES(expires_at))

-- name: find_results
SELECT name, body FROM ems_celery_result WHERE name IN %(keys)s AND (expires_at IS NULL OR expires_at > NOW(6))

-- name: delete_results
DELETE FROM ems_celery_result WHERE name IN %(keys)s

-- name: count_late
-- Values whose time was over a while ago; counted up to a limit, by the index on the time.
SELECT COUNT(*) FROM (
  SELECT 1 FROM ems_celery_result WHERE expires_at < NOW(6) - INTERVAL %(late_s)s SECOND LIMIT %(limit)s) r

-- name: delete_expired
-- Bounded batches, by the index on the time.
DELETE FROM ems_celery_result WHERE expires_at <= NOW(6) ORDER BY expires_at LIMIT %(limit)s
