-- name: add
INSERT INTO acme_note (topic_id, text, expires_at) VALUES (%(topic_id)s, %(text)s, NOW(6) + INTERVAL %(keep_s)s SECOND)

-- name: list
SELECT t.name, n.text FROM acme_note n JOIN ems_topic t ON t.id = n.topic_id ORDER BY n.id DESC LIMIT 100

-- name: count_late
SELECT COUNT(*) FROM acme_note WHERE expires_at < NOW(6) - INTERVAL %(late_s)s SECOND

-- name: sweep
DELETE FROM acme_note WHERE expires_at < NOW(6) LIMIT %(limit)s
