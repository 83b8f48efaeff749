-- name: begin_run
-- The fence of every later write. The message that owns a run may take it over, because its lease is over then; one that
-- has failed is run again if its dead letter is requeued. A run that goes on names itself: it takes nothing back.
UPDATE ems_flow SET state = 'running', run = run + 1, owner = %(owner)s, waits = NULL, changed_at = NOW(6)
WHERE id = %(flow_id)s AND (state IN ('ready', 'waiting') OR (state = 'running' AND owner = %(owner)s))
  AND begins_at IS NULL AND (%(run)s IS NULL OR run = %(run)s)

-- name: get_flows
SELECT f.id, f.`key`, f.name, f.version, t.name, f.state, f.run, f.owner, f.args, f.waits, f.value, f.error_type, f.error,
  f.parent, f.next_step, f.started_at, f.changed_at, f.deadline_at, f.ended_at, f.begins_at, f.undone,
  (SELECT COUNT(*) FROM ems_topic WHERE name = 'ems.flow-events'), NOW(6)
FROM ems_flow f JOIN ems_topic t ON t.id = f.topic_id WHERE f.id IN %(flows)s

-- name: list_steps
SELECT flow_id, step, kind, name, branch, total, pending, value, error_type, error, due_at, began_at, ended_at
FROM ems_flow_step WHERE flow_id IN %(flows)s ORDER BY flow_id, step

-- name: list_small_ends
-- Of single calls: a run asks for most of them, one after another. Large values are read when they are asked for.
SELECT s.flow_id, e.step, e.number, e.value, e.error_type, e.error
FROM ems_flow_step s JOIN ems_flow_end e ON e.flow_id = s.flow_id AND e.step = s.step
WHERE s.flow_id IN %(flows)s AND s.kind = 'call' AND s.pending = 0 AND (e.value IS NULL OR LENGTH(e.value) <= 4000)

-- name: list_signals
-- At most some, as plain SQL may have given more: a run is not to fill its worker's memory. Large values are read
-- when they are taken.
SELECT flow_id, id, name, IF(size <= 4000, value, NULL) FROM ems_flow_signal WHERE flow_id IN %(flows)s AND step IS NULL
ORDER BY flow_id, id LIMIT %(loaded)s

-- name: add_steps
-- Checkpoints alone: one statement, which writes nothing for a flow of which another run is the present one. It waits for
-- a run that is just beginning, which then finds the row or has fenced it off.
INSERT INTO ems_flow_step (flow_id, step, kind, name, branch, total, pending, value, began_at, ended_at)
SELECT f.id, n.step, 'step', n.name, n.branch, 0, 0, n.value, NOW(6) - INTERVAL n.took_s SECOND, NOW(6)
FROM (%(steps)s) n STRAIGHT_JOIN ems_flow f ON f.id = n.flow_id AND f.run = n.run AND f.state = 'running' LOCK IN SHARE MODE

-- name: new_step
SELECT %(flow_id)s AS flow_id, %(run)s AS run, %(step)s AS step, %(name)s AS name, %(branch)s AS branch, %(value)s AS value, %(took_s)s AS took_s

-- name: finish
UPDATE ems_flow SET state = 'done', waits = NULL, value = %(value)s, undone = 0, changed_at = NOW(6), ended_at = NOW(6)
WHERE id = %(flow_id)s AND run = %(run)s AND state = 'running'

-- name: find_flows
-- Also one whose topic is gone: it can be cancelled.
SELECT f.id, f.`key`, f.name, f.version, COALESCE(t.name, ''), f.state, f.run, f.owner, f.args, f.waits, f.value, f.error_type, f.error,
  f.parent, f.next_step, f.started_at, f.changed_at, f.deadline_at, f.ended_at, f.begins_at, f.undone,
  (SELECT COUNT(*) FROM ems_topic WHERE name = 'ems.flow-events'), NOW(6)
FROM ems_flow f LEFT JOIN ems_topic t ON t.id = f.topic_id WHERE f.`key` IN %(keys)s
