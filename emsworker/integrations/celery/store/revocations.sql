-- name: add_revoked
INSERT INTO ems_celery_revoked (task_id, expires_at) VALUES

-- name: revoked_row
(%(task_id)s,NOW(6) + INTERVAL %(kept_s)s SECOND)

-- name: keep_revoked
ON DUPLICATE KEY UPDATE expires_at = VALUES(expires_at)

-- name: find_revoked
SELECT task_id FROM ems_celery_revoked WHERE task_id IN %(task_ids)s

-- name: delete_expired
DELETE FROM ems_celery_revoked WHERE expires_at <= NOW(6) ORDER BY expires_at LIMIT %(limit)s
