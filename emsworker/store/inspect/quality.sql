-- name: list_orphan_retries
-- Retries whose message is gone; each message is looked up by its primary key, and there are few retries. A retry that
-- was claimed just now may still be in progress.
SELECT g.topic_id, g.name, r.`partition`, COUNT(*), MIN(r.`offset`) FROM ems_group g JOIN ems_retry r ON r.group_id = g.id
WHERE NOT EXISTS (SELECT 1 FROM ems_message m WHERE m.topic_id = g.topic_id AND m.`partition` = r.`partition` AND m.`offset` = r.`offset`)
GROUP BY g.topic_id, g.name, r.`partition`

-- name: list_ownerless_claims
-- Running claims whose client is gone, and without progress for longer than recovery takes.
SELECT g.topic_id, g.name, c.`partition`, COUNT(*), MIN(c.lo) FROM ems_claim c FORCE INDEX (live) JOIN ems_group g ON g.id = c.group_id
WHERE c.state = 'start' AND c.progress_at < NOW(6) - INTERVAL %(patience_s)s SECOND
AND NOT EXISTS (SELECT 1 FROM ems_client k WHERE k.client_id = c.client_id)
GROUP BY g.topic_id, g.name, c.`partition`

-- name: list_places
SELECT topic_id, `partition`, log_start, trimmed FROM ems_partition ORDER BY topic_id, `partition`
