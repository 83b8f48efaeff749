-- name: lock_waiting
-- The oldest rows that are committed and were not refused. Rows of open transactions are passed over.
SELECT id, topic, LENGTH(body) FROM ems_publish FORCE INDEX (waiting) WHERE refused_at IS NULL ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- name: read_rows
SELECT id, topic, body, `key`, tag, headers, task, priority, delay_s, uid FROM ems_publish WHERE id IN %(ids)s ORDER BY id

-- name: delete_rows
DELETE FROM ems_publish WHERE id IN %(ids)s

-- name: refuse_row
UPDATE ems_publish SET refused_at = NOW(6), error = %(error)s WHERE id = %(id)s

-- name: list_refused
SELECT id, topic, task, `key`, LENGTH(body), created_at, refused_at, error FROM ems_publish
WHERE refused_at IS NOT NULL AND id > %(after)s ORDER BY id LIMIT %(limit)s

-- name: count_refused
-- At most a thousand are counted.
SELECT COUNT(*) FROM (SELECT 1 FROM ems_publish WHERE refused_at IS NOT NULL LIMIT 1000) r

-- name: find_refused
SELECT id FROM ems_publish WHERE refused_at IS NOT NULL AND id > %(after)s ORDER BY id LIMIT %(limit)s

-- name: retry_rows
UPDATE ems_publish SET refused_at = NULL, error = NULL WHERE refused_at IS NOT NULL AND id IN %(ids)s

-- name: delete_refused
DELETE FROM ems_publish WHERE refused_at IS NOT NULL AND id IN %(ids)s
