-- name: lock_waiting
-- The oldest rows that are committed and were not refused. Rows of open transactions are passed over.
SELECT id, topic, total_size FROM ems_publish FORCE INDEX (waiting) WHERE refused_at IS NULL ORDER BY id LIMIT %(limit)s FOR UPDATE SKIP LOCKED

-- name: read_rows
SELECT id, topic, body, `key`, tag, headers, task, priority, delay_s, uid FROM ems_publish WHERE id IN %(ids)s ORDER BY id

-- name: delete_rows
-- One look-up for each id: for a list a server may choose to read all rows, and wait for those of open transactions.
DELETE p FROM (%(ids)s) d STRAIGHT_JOIN ems_publish p FORCE INDEX (PRIMARY) ON p.id = d.id

-- name: one_id
SELECT %(id)s AS id

-- name: refuse_row
UPDATE ems_publish SET refused_at = NOW(6), error = %(error)s WHERE id = %(id)s

-- name: list_refused
SELECT id, topic, task, `key`, LENGTH(body), created_at, refused_at, error FROM ems_publish
WHERE refused_at IS NOT NULL AND id > %(after)s ORDER BY id LIMIT %(limit)s

-- name: outline_refused
-- What a role may read that reads no body and no error.
SELECT id, topic, created_at, refused_at FROM ems_publish WHERE refused_at IS NOT NULL AND id > %(after)s ORDER BY id LIMIT %(limit)s

-- name: count_refused
-- At most so many are counted.
SELECT COUNT(*) FROM (SELECT 1 FROM ems_publish FORCE INDEX (waiting) WHERE refused_at IS NOT NULL LIMIT %(limit)s) r

-- name: count_waiting
-- At most so many are counted.
SELECT COUNT(*) FROM (SELECT 1 FROM ems_publish FORCE INDEX (waiting) WHERE refused_at IS NULL LIMIT %(limit)s) r

-- name: find_refused
SELECT id FROM ems_publish WHERE refused_at IS NOT NULL AND id > %(after)s ORDER BY id LIMIT %(limit)s

-- name: delete_old
-- Refused longer ago than so many seconds; a range of the index on refused_at, in which waiting rows are NULL. Few at a
-- time: each may have a body of 16 MB, which the server keeps until its transaction is purged.
DELETE FROM ems_publish WHERE refused_at < NOW(6) - INTERVAL %(keep_s)s SECOND ORDER BY refused_at, id LIMIT %(limit)s

-- name: count_surplus
-- How many refused rows, up to a few, are beyond the number or the bytes to keep. Only the index is read, and of it no
-- more than is kept.
SELECT COUNT(*) FROM (SELECT ROW_NUMBER() OVER (ORDER BY r.refused_at DESC, r.id DESC) AS place,
    SUM(r.total_size) OVER (ORDER BY r.refused_at DESC, r.id DESC ROWS UNBOUNDED PRECEDING) AS bytes
  FROM (SELECT refused_at, id, total_size FROM ems_publish FORCE INDEX (waiting)
    WHERE refused_at IS NOT NULL ORDER BY refused_at DESC, id DESC LIMIT %(look)s) r
) s WHERE s.place > %(keep_rows)s OR s.bytes > %(keep_bytes)s

-- name: delete_oldest
DELETE FROM ems_publish WHERE refused_at IS NOT NULL ORDER BY refused_at, id LIMIT %(limit)s

-- name: retry_rows
UPDATE (%(ids)s) d STRAIGHT_JOIN ems_publish p FORCE INDEX (PRIMARY) ON p.id = d.id SET p.refused_at = NULL, p.error = NULL
WHERE p.refused_at IS NOT NULL

-- name: delete_refused
DELETE p FROM (%(ids)s) d STRAIGHT_JOIN ems_publish p FORCE INDEX (PRIMARY) ON p.id = d.id WHERE p.refused_at IS NOT NULL
