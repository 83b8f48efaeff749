-- Bodies that are kept beside their messages. A body and its message are written in one transaction; so whoever sees a
-- body without a message sees one that no message needs any more.

-- name: insert_body
-- On a connection of any driver, as insert_outbox: the database is named, the columns are not.
INSERT INTO %(database)s.ems_large_body VALUES (%(body_id)s,%(topic_id)s,%(uid)s,%(size)s,UTC_TIMESTAMP(6))

-- name: note_again
-- Repeated after a lost answer. It changes the row, so that among several writers a deletion of it fails, and locks it
-- until the commit, so that a deletion passes over it.
ON DUPLICATE KEY UPDATE created_at = UTC_TIMESTAMP(6)

-- name: insert_chunk
INSERT IGNORE INTO %(database)s.ems_body_chunk VALUES (%(body_id)s,%(chunk)s,%(data)s)

-- name: read_chunks
SELECT data FROM ems_body_chunk WHERE body_id = %(body_id)s AND chunk BETWEEN %(first)s AND %(last)s ORDER BY chunk

-- name: list_bodies
-- The next bodies, and whether a message needs each: it waits, is in the stream or a dead letter, and refers to this body.
-- In the order in which messages go on: from the outbox to the stream to the dead letters. Or a result is kept there. One
-- snapshot, and four look-ups.
SELECT b.body_id, EXISTS (SELECT 1 FROM ems_outbox p FORCE INDEX (uid) WHERE p.topic_id = b.topic_id AND p.uid = b.uid AND {refers_p})
  OR EXISTS (SELECT 1 FROM ems_message m FORCE INDEX (uid) WHERE m.topic_id = b.topic_id AND m.uid = b.uid AND m.kind = 'message' AND {refers_m})
  OR EXISTS (SELECT 1 FROM ems_dead d FORCE INDEX (uid) WHERE d.uid = b.uid AND {refers_d})
  OR EXISTS (SELECT 1 FROM ems_result r FORCE INDEX (PRIMARY) WHERE r.topic_id = b.topic_id AND r.uid = b.uid AND SUBSTRING(r.body, 1, 17) = CONCAT(X'00', b.body_id))
FROM (SELECT body_id, topic_id, uid FROM ems_large_body WHERE body_id > %(after)s AND body_id <= %(last)s ORDER BY body_id LIMIT %(limit)s) b
ORDER BY b.body_id

-- name: lock_body
-- Before it is looked at again: a sender that repeats itself holds the row, or waits until it is gone.
SELECT 1 FROM ems_large_body WHERE body_id = %(body_id)s FOR UPDATE SKIP LOCKED

-- name: delete_chunks
DELETE FROM ems_body_chunk WHERE body_id = %(body_id)s

-- name: delete_body
DELETE FROM ems_large_body WHERE body_id = %(body_id)s

-- name: insert_result_body
-- In the transaction that writes the result. Repeated after a lost answer it finds its own row, which the result's row needs.
INSERT IGNORE INTO ems_large_body (body_id, topic_id, uid, size, created_at) VALUES (%(body_id)s,%(topic_id)s,%(uid)s,%(size)s,UTC_TIMESTAMP(6))

-- name: insert_result_chunk
INSERT IGNORE INTO ems_result_chunk (body_id, chunk, data) VALUES (%(body_id)s,%(chunk)s,%(data)s)

-- name: read_result_chunks
SELECT data FROM ems_result_chunk WHERE body_id = %(body_id)s AND chunk BETWEEN %(first)s AND %(last)s ORDER BY chunk

-- name: delete_result_chunks
DELETE FROM ems_result_chunk WHERE body_id = %(body_id)s
