-- name: get_topic
SELECT id, name, {topic_columns}, server, former FROM ems_topic WHERE name = %(name)s

-- name: list_topics
SELECT id, name, {topic_columns}, server, former FROM ems_topic ORDER BY name

-- name: list_some_topics
-- The index is forced, because with old statistics a server may read all topics in the order asked for.
SELECT id, name, {topic_columns}, server, former FROM ems_topic FORCE INDEX (PRIMARY) WHERE id IN %(ids)s ORDER BY name

-- name: list_names
SELECT name FROM ems_topic ORDER BY name LIMIT %(limit)s

-- name: find_served
-- Of these topics, those that are kept here, or were and may have work left: a pointer alone has no groups.
SELECT t.name, t.server IS NULL FROM ems_topic t
WHERE t.name IN %(names)s AND (t.server IS NULL OR EXISTS (SELECT 1 FROM ems_group g WHERE g.topic_id = t.id))

-- name: find_topics
SELECT name FROM ems_topic WHERE name IN %(names)s

-- name: list_pointers
SELECT server, MIN(name), COUNT(*) FROM ems_topic WHERE server IS NOT NULL GROUP BY server ORDER BY server

-- name: lock_topic
-- A transaction that adds partitions or groups, or deletes the topic, locks this row first.
SELECT id, name, {topic_columns}, server, former FROM ems_topic WHERE id = %(id)s FOR UPDATE

-- name: add_topic
-- If two transactions create a topic at once, the unique name lets one insert it, and the other finds it.
INSERT INTO ems_topic (name, {topic_columns}, server, created_at)
VALUES (%(name)s, {topic_values}, %(server)s, NOW(6))
ON DUPLICATE KEY UPDATE id = LAST_INSERT_ID(id)

-- name: add_guard
-- The row of a topic that exists stays as it is; ON DUPLICATE KEY would need the privilege to change it.
INSERT IGNORE INTO ems_topic_guard (topic_id, moved) VALUES (%(topic_id)s, %(moved)s)

-- name: close_guard
-- Waits for open transactions that have sent to the topic.
UPDATE ems_topic_guard SET deleted_at = NOW(6) WHERE topic_id = %(topic_id)s

-- name: move_guard
-- Waits for open transactions that have sent to the topic; those that come later find a dedup key of theirs refused.
-- Changes nothing if it was moved after that was decided.
UPDATE ems_topic_guard SET moved = %(moved)s, last_move = %(move)s WHERE topic_id = %(topic_id)s AND last_move = %(last_move)s

-- name: add_partition
INSERT INTO ems_partition (topic_id, `partition`, closed) VALUES (%(topic_id)s, %(partition)s, %(closed)s)
ON DUPLICATE KEY UPDATE topic_id = topic_id

-- name: add_filler
-- A small row behind the last message of the partition, at offset 0 of the next number. InnoDB copies the next row in
-- key order to each page that it adds at the end of a partition: without a filler that is the first message of the next
-- partition, which can be half a page. IGNORE, because an ON DUPLICATE KEY needs the privilege to change messages.
INSERT IGNORE INTO ems_message (topic_id, `partition`, `offset`, kind, headers, body, born_at)
VALUES (%(topic_id)s, %(partition)s + 1, 0, 'tombstone', '', '', NOW(6))

-- name: change_topic
UPDATE ems_topic SET {topic_changes} WHERE id = %(id)s

-- name: keep_at
-- Where the topic is kept from now on; NULL for here. Its settings come along, since those of a pointer may be old, and
-- the names of the servers that kept it before.
UPDATE ems_topic SET {topic_changes}, server = %(server)s, former = %(former)s WHERE id = %(id)s

-- name: point_at
UPDATE ems_topic SET server = %(server)s WHERE id = %(id)s AND server IS NOT NULL

-- name: close_partitions
-- Waits for publishers in progress; later ones lock the partition's row and find it closed.
UPDATE ems_partition SET closed = %(closed)s WHERE topic_id = %(topic_id)s

-- name: get_group
SELECT id, topic_id, name, {group_columns} FROM ems_group WHERE topic_id = %(topic_id)s AND name = %(name)s

-- name: list_groups
SELECT id, topic_id, name, {group_columns} FROM ems_group ORDER BY topic_id, name

-- name: list_groups_of
SELECT id, topic_id, name, {group_columns} FROM ems_group WHERE topic_id = %(topic_id)s ORDER BY name

-- name: list_some_groups
-- The index is forced, because with old statistics a server may read all groups in the order asked for.
SELECT id, topic_id, name, {group_columns} FROM ems_group FORCE INDEX (PRIMARY) WHERE id IN %(ids)s ORDER BY topic_id, name

-- name: find_group
-- A group of that name on any topic; every name is looked at if there is none.
SELECT t.name, g.name FROM ems_group g JOIN ems_topic t ON t.id = g.topic_id WHERE g.name = %(name)s LIMIT 1

-- name: add_group
INSERT INTO ems_group (topic_id, name, {group_columns}, created_at)
VALUES (%(topic_id)s, %(name)s, {group_values}, NOW(6))
ON DUPLICATE KEY UPDATE id = LAST_INSERT_ID(id)

-- name: change_group
UPDATE ems_group SET {group_changes} WHERE id = %(id)s

-- name: add_cursor
INSERT INTO ems_cursor (group_id, `partition`, next_offset) VALUES (%(group_id)s, %(partition)s, %(next_offset)s)
ON DUPLICATE KEY UPDATE group_id = group_id

-- name: get_extent
-- The first offset of a partition and the one after its last message; the lock is shared, so that retention waits for the
-- cursor made from it.
SELECT p.log_start, GREATEST(p.log_start, COALESCE((SELECT MAX(m.`offset`) FROM ems_message m WHERE m.topic_id = p.topic_id AND m.`partition` = p.`partition`), 0) + 1)
FROM ems_partition p WHERE p.topic_id = %(topic_id)s AND p.`partition` = %(partition)s LOCK IN SHARE MODE

-- name: lock_cursors
-- Every claim of new messages locks its cursor first: while these locks are held, no new messages are claimed.
SELECT `partition` FROM ems_cursor WHERE group_id = %(group_id)s FOR UPDATE

-- name: count_live_claims
SELECT COUNT(*) FROM ems_claim WHERE group_id = %(group_id)s AND state IN ('start', 'waiting')

-- name: count_retries
SELECT COUNT(*) FROM ems_retry WHERE group_id = %(group_id)s

-- name: delete_group
DELETE FROM ems_group WHERE id = %(group_id)s

-- name: delete_cursors
DELETE FROM ems_cursor WHERE group_id = %(group_id)s

-- name: delete_skip_policy
DELETE FROM ems_skip_policy WHERE group_id = %(group_id)s

-- name: delete_some_claims
DELETE FROM ems_claim WHERE group_id = %(group_id)s LIMIT 5000

-- name: delete_some_retries
DELETE FROM ems_retry WHERE group_id = %(group_id)s LIMIT 5000

-- name: delete_some_attempts
DELETE FROM ems_attempt WHERE group_id = %(group_id)s LIMIT 5000

-- name: delete_some_dead
DELETE FROM ems_dead WHERE group_id = %(group_id)s LIMIT 1000

-- name: delete_some_skips
DELETE FROM ems_skip WHERE group_id = %(group_id)s LIMIT 5000

-- name: delete_restored
DELETE FROM ems_restored WHERE topic_id = %(topic_id)s

-- name: delete_positions
DELETE FROM ems_position WHERE topic_id = %(topic_id)s

-- name: delete_holds
DELETE FROM ems_hold WHERE topic_id = %(topic_id)s

-- name: delete_topic
DELETE FROM ems_topic WHERE id = %(topic_id)s

-- name: delete_partitions
DELETE FROM ems_partition WHERE topic_id = %(topic_id)s

-- name: delete_some_messages
DELETE FROM ems_message WHERE topic_id = %(topic_id)s LIMIT 2000

-- name: delete_some_keys
DELETE FROM ems_dedup WHERE topic_id = %(topic_id)s LIMIT 1000

-- name: delete_some_outbox
DELETE FROM ems_outbox WHERE topic_id = %(topic_id)s LIMIT 2000
