-- name: list_delayed_topics
-- Topics that have delayed messages; one index dive for each.
SELECT DISTINCT topic_id FROM ems_outbox FORCE INDEX (PRIMARY)

-- name: list_retrying_groups
-- Groups that have retries; one index dive for each.
SELECT DISTINCT group_id FROM ems_retry FORCE INDEX (PRIMARY)

-- name: list_running_groups
SELECT DISTINCT group_id FROM ems_claim FORCE INDEX (live) WHERE state = 'start'

-- name: list_dead_groups
-- Groups that have dead letters; one index dive for each.
SELECT DISTINCT group_id FROM ems_dead FORCE INDEX (PRIMARY)

-- name: list_delayed
-- The next due messages of a topic after a place, which is a range of the primary key.
SELECT topic_id, due_at, uid, created_at, `partition`, `key`, tag, level, producer_id, {headers} FROM ems_outbox FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND due_at >= %(due_at)s AND (due_at > %(due_at)s OR uid > %(uid)s)
ORDER BY topic_id, due_at, uid LIMIT %(limit)s

-- name: find_delayed
-- A message in the outbox of some topics; one index dive for each.
SELECT topic_id, due_at, uid, created_at, `partition`, `key`, tag, level, producer_id, {headers} FROM ems_outbox FORCE INDEX (uid)
WHERE topic_id IN %(topic_ids)s AND uid = %(uid)s

-- name: list_retries
-- The next due retries of a group after a place, which are ranges of one index; blocked ones are last.
SELECT r.group_id, r.due_at, r.`partition`, r.`offset`, r.attempt, r.`key`, {last_error} FROM ems_retry r FORCE INDEX (due)
WHERE r.group_id = %(group_id)s AND r.claim_id IS NULL AND (r.due_at > %(due_at)s OR (r.due_at = %(due_at)s AND r.`partition` > %(partition)s)
  OR (r.due_at = %(due_at)s AND r.`partition` = %(partition)s AND r.`offset` > %(offset)s))
ORDER BY r.due_at, r.`partition`, r.`offset` LIMIT %(limit)s

-- name: get_outline
SELECT uid, born_at, {headers} FROM ems_message WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` = %(offset)s AND kind = 'message'

-- name: list_running
-- The live claims of some groups after a place; there is one for each busy thread. Of a claim of the stream the first
-- unfinished offset; of a claim of retries the lowest that has not ended.
SELECT c.group_id, c.`partition`, c.lo, c.claim_id, c.source, c.client_id, k.name, c.claimed_at, c.progress_at, c.deadline_at, c.hi,
  IF(c.source = 'stream', COALESCE(c.running, c.acked_to + 1),
    (SELECT MIN(r.`offset`) FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = c.group_id AND r.claim_id = c.claim_id)),
  IF(c.source = 'stream', c.hi - c.acked_to,
    (SELECT COUNT(*) FROM ems_retry r FORCE INDEX (due) WHERE r.group_id = c.group_id AND r.claim_id = c.claim_id))
FROM ems_claim c FORCE INDEX (live) LEFT JOIN ems_client k ON k.client_id = c.client_id
WHERE c.state = 'start' AND c.group_id IN %(group_ids)s AND c.group_id >= %(group_id)s
  AND (c.group_id > %(group_id)s OR c.`partition` > %(partition)s OR (c.`partition` = %(partition)s AND (c.lo > %(lo)s OR (c.lo = %(lo)s AND c.claim_id > %(claim_id)s))))
ORDER BY c.group_id, c.`partition`, c.lo, c.claim_id LIMIT %(limit)s

-- name: get_running
-- The first message of a range, and the last report of its handler.
SELECT m.`offset`, m.uid, p.fraction, p.told, p.attempt, p.client_id, p.reported_at FROM ems_message m
LEFT JOIN ems_progress p ON p.topic_id = m.topic_id AND p.uid = m.uid AND p.group_id = %(group_id)s
WHERE m.topic_id = %(topic_id)s AND m.`partition` = %(partition)s AND m.`offset` >= %(offset)s AND m.`offset` <= %(hi)s AND m.kind = 'message'
ORDER BY m.`offset` LIMIT 1

-- name: list_messages
-- Rows of a topic after a place, in the order of the stream, tombstones too: a range of the primary key.
SELECT `partition`, `offset`, uid, `key`, tag, size, born_at, producer_id, kind FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` > %(offset)s ORDER BY `offset` LIMIT %(limit)s

-- name: list_newest_messages
SELECT `partition`, `offset`, uid, `key`, tag, size, born_at, producer_id, kind FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` > 0 AND `offset` < %(offset)s
ORDER BY topic_id DESC, `partition` DESC, `offset` DESC LIMIT %(limit)s

-- name: list_dead
-- The newest dead letters of a group before a place and within a time, which is a range of the index.
SELECT group_id, dead_at, `partition`, `offset`, uid, `key`, tag, born_at, attempts, task, error_type, {dead_error} FROM ems_dead FORCE INDEX (recent)
WHERE group_id = %(group_id)s AND dead_at >= %(since)s AND dead_at <= %(dead_at)s
  AND (dead_at < %(dead_at)s OR `partition` < %(partition)s OR (`partition` = %(partition)s AND `offset` < %(offset)s))
ORDER BY group_id DESC, dead_at DESC, `partition` DESC, `offset` DESC LIMIT %(limit)s

-- name: list_dead_of_class
-- The newest dead letters of one task and error of a group.
SELECT group_id, dead_at, `partition`, `offset`, uid, `key`, tag, born_at, attempts, task, error_type, {dead_error} FROM ems_dead FORCE INDEX (class)
WHERE group_id = %(group_id)s AND task = %(task)s AND error_type = %(error_type)s AND dead_at >= %(since)s AND dead_at <= %(dead_at)s
  AND (dead_at < %(dead_at)s OR `partition` < %(partition)s OR (`partition` = %(partition)s AND `offset` < %(offset)s))
ORDER BY dead_at DESC, `partition` DESC, `offset` DESC LIMIT %(limit)s

-- name: list_newest_groups
-- The time of the newest dead letter of each group within a time; one index dive for each, or, if most groups have few,
-- the whole index.
SELECT group_id, MAX(dead_at) FROM ems_dead FORCE INDEX (recent) WHERE dead_at >= %(since)s AND dead_at <= %(until)s
GROUP BY group_id

-- name: list_newest_classes
-- The same of each class.
SELECT group_id, task, error_type, MAX(dead_at) FROM ems_dead FORCE INDEX (class) WHERE dead_at >= %(since)s AND dead_at <= %(until)s
GROUP BY group_id, task, error_type

-- name: count_classes_of_many
-- The dead letters of each class of many groups within a time, with names: a range of the index for each group.
SELECT STRAIGHT_JOIN t.name, g.name, d.task, d.error_type, d.letters, d.latest FROM (
  SELECT group_id, task, error_type, COUNT(*) AS letters, MAX(dead_at) AS latest FROM ems_dead FORCE INDEX (class)
  WHERE group_id IN %(group_ids)s AND dead_at >= %(since)s AND dead_at <= %(until)s GROUP BY group_id, task, error_type
) d JOIN ems_group g FORCE INDEX (PRIMARY) ON g.id = d.group_id JOIN ems_topic t FORCE INDEX (PRIMARY) ON t.id = g.topic_id

-- name: next_class
-- The first class of a group's dead letters after another one: one dive into the index.
SELECT group_id, task, error_type FROM ems_dead FORCE INDEX (class)
WHERE group_id = %(group_id)s AND (task > %(task)s OR (task = %(task)s AND error_type > %(error_type)s))
ORDER BY group_id, task, error_type LIMIT 1

-- name: first_class
SELECT group_id, task, error_type FROM ems_dead FORCE INDEX (class) WHERE group_id = %(group_id)s ORDER BY group_id, task, error_type LIMIT 1

-- name: count_class
-- The dead letters of a class within a time, counted up to a limit, and the newest of them.
SELECT (SELECT COUNT(*) FROM (SELECT 1 FROM ems_dead FORCE INDEX (class) WHERE group_id = %(group_id)s AND task = %(task)s
    AND error_type = %(error_type)s AND dead_at >= %(since)s AND dead_at <= %(until)s LIMIT %(most)s) d),
  (SELECT dead_at FROM ems_dead FORCE INDEX (class) WHERE group_id = %(group_id)s AND task = %(task)s AND error_type = %(error_type)s
    AND dead_at >= %(since)s AND dead_at <= %(until)s ORDER BY dead_at DESC LIMIT 1)
