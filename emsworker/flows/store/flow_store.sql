-- name: hold_topic
SELECT %(topic_id)s

-- name: insert_flow
-- On a connection of any driver, in any database. A flow that exists is left as it is: by IGNORE, because MariaDB asks for
-- the right to update every inserted column if there is an ON DUPLICATE KEY UPDATE; the values were checked before.
INSERT IGNORE INTO %(database)s.ems_flow (`key`, name, version, topic_id, state, owner, level, headers, args, started_at, changed_at, deadline_at)
VALUES (%(key)s, %(name)s, %(version)s, %(topic_id)s, 'ready', %(owner)s, %(level)s, %(headers)s, %(args)s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6),
  UTC_TIMESTAMP(6) + INTERVAL %(timeout_s)s SECOND)

-- name: insert_child
-- The same for one that another flow calls: only workers may say so.
INSERT IGNORE INTO %(database)s.ems_flow (`key`, name, version, topic_id, state, owner, level, headers, args, parent, started_at, changed_at, deadline_at)
VALUES (%(key)s, %(name)s, %(version)s, %(topic_id)s, 'ready', %(owner)s, %(level)s, %(headers)s, %(args)s, %(parent)s, UTC_TIMESTAMP(6), UTC_TIMESTAMP(6),
  UTC_TIMESTAMP(6) + INTERVAL %(timeout_s)s SECOND)

-- name: send_first
-- The message that begins a flow, if that was stored just before; the owner is new each time. Here and below,
-- IGNORE: a start whose answer was lost is repeated.
INSERT IGNORE INTO %(database)s.ems_outbox (topic_id, due_at, `partition`, uid, `key`, tag, headers, body, producer_id, created_at, level)
SELECT topic_id, COALESCE(begins_at, UTC_TIMESTAMP(6)), NULL, owner, NULL, NULL, headers, CONCAT('[[', id, '],{}]'), 'flows', UTC_TIMESTAMP(6), level
FROM %(database)s.ems_flow WHERE `key` = %(key)s AND owner = %(owner)s

-- name: send_first_directly
-- The same, at an offset that was allocated just before. NULL, which the table rejects, if it was not, or if the flow was
-- there already: then nothing is kept.
INSERT INTO ems_message (topic_id, `partition`, `offset`, born_at, uid, `key`, tag, headers, body, producer_id, size)
SELECT %(topic_id)s, %(partition)s, IF(ROW_COUNT() = 1, LAST_INSERT_ID(), NULL), NOW(6), f.owner, NULL, NULL, f.headers,
  CONCAT('[[', f.id, '],{}]'), 'flows', LENGTH(CONCAT('[[', f.id, '],{}]'))
FROM (SELECT 1) one LEFT JOIN ems_flow f ON f.`key` = %(key)s AND f.owner = %(owner)s

-- name: send_deadline
-- A message that runs the flow when its time is over.
INSERT IGNORE INTO %(database)s.ems_outbox (topic_id, due_at, `partition`, uid, `key`, tag, headers, body, producer_id, created_at, level)
SELECT topic_id, deadline_at, NULL, %(uid)s, NULL, NULL, headers, CONCAT('[[', id, '],{}]'), 'flows', UTC_TIMESTAMP(6), level
FROM %(database)s.ems_flow WHERE `key` = %(key)s AND owner = %(owner)s

-- name: insert_attribute
INSERT IGNORE INTO %(database)s.ems_flow_attribute (name, value, flow_id)
SELECT %(name)s, %(value)s, id FROM %(database)s.ems_flow WHERE `key` = %(key)s AND owner = %(owner)s

-- name: find_started
-- Locked by the INSERT already; a plain read might be of a snapshot in which the flow is not yet there.
SELECT owner, name, args FROM %(database)s.ems_flow WHERE `key` = %(key)s LOCK IN SHARE MODE

-- name: lock_burst
-- The first statement of each start of a burst: it locks the row at once, whether it was there or not, so that starts
-- queue up. Whoever needs a burst and its flow locks them in this order.
INSERT INTO %(database)s.ems_flow_debounce (name, `key`, flow) VALUES (%(name)s, %(burst)s, %(key)s) ON DUPLICATE KEY UPDATE flow = flow

-- name: insert_waiting
-- The flow of a burst that was not there; IGNORE, because a start whose answer was lost is repeated.
INSERT IGNORE INTO %(database)s.ems_flow (`key`, name, version, topic_id, state, owner, level, headers, args, waits, started_at, changed_at, begins_at, deadline_at)
SELECT flow, name, %(version)s, %(topic_id)s, 'waiting', %(owner)s, %(level)s, %(headers)s, %(args)s, 'debounce', UTC_TIMESTAMP(6), UTC_TIMESTAMP(6),
  UTC_TIMESTAMP(6) + INTERVAL %(debounce_s)s SECOND, UTC_TIMESTAMP(6) + INTERVAL %(timeout_s)s SECOND
FROM %(database)s.ems_flow_debounce WHERE name = %(name)s AND `key` = %(burst)s AND flow = %(key)s

-- name: move_start
-- Of a burst that was there: its flow has not begun, and does not begin before this is committed. It never begins earlier
-- than a start has asked for, so the message that is under way is never too late.
UPDATE %(database)s.ems_flow_debounce d STRAIGHT_JOIN %(database)s.ems_flow f ON f.`key` = d.flow
SET f.args = %(args)s, f.version = %(version)s, f.changed_at = UTC_TIMESTAMP(6),
  f.begins_at = GREATEST(f.begins_at, LEAST(UTC_TIMESTAMP(6) + INTERVAL %(debounce_s)s SECOND, f.started_at + INTERVAL %(longest_s)s SECOND))
WHERE d.name = %(name)s AND d.`key` = %(burst)s AND d.flow <> %(key)s

-- name: find_burst
SELECT flow FROM %(database)s.ems_flow_debounce WHERE name = %(name)s AND `key` = %(burst)s LOCK IN SHARE MODE

-- name: lock_burst_of_flow
SELECT 1 FROM ems_flow_debounce WHERE name = %(name)s AND `key` = %(burst)s AND flow = %(key)s FOR UPDATE

-- name: end_burst
-- From now on the flow can begin, and a further start begins another burst.
UPDATE ems_flow SET begins_at = NULL WHERE id = %(flow_id)s AND begins_at <= NOW(6) AND ended_at IS NULL

-- name: delete_burst
DELETE FROM ems_flow_debounce WHERE name = %(name)s AND `key` = %(burst)s AND flow = %(key)s

-- name: send_moved
-- A message that came before the flow may begin is sent again.
INSERT INTO %(database)s.ems_outbox (topic_id, due_at, `partition`, uid, `key`, tag, headers, body, producer_id, created_at, level)
SELECT topic_id, begins_at, NULL, %(uid)s, NULL, NULL, headers, CONCAT('[[', id, '],{}]'), 'flows', UTC_TIMESTAMP(6), level
FROM %(database)s.ems_flow WHERE id = %(flow_id)s AND begins_at IS NOT NULL

-- name: list_steps
SELECT step, kind, name, branch, total, pending, value, error_type, error, due_at, began_at, ended_at
FROM ems_flow_step WHERE flow_id = %(flow_id)s ORDER BY step

-- name: list_ends
SELECT number, value, error_type, error FROM ems_flow_end WHERE flow_id = %(flow_id)s AND step = %(step)s ORDER BY number

-- name: get_signal_value
SELECT value FROM ems_flow_signal WHERE flow_id = %(flow_id)s AND id = %(id)s

-- name: measure_signals
-- Those that wait, but for this one, which an earlier try may have given; no more of them than matter.
SELECT COUNT(*), CAST(COALESCE(SUM(size), 0) AS UNSIGNED) FROM (
  SELECT size FROM %(database)s.ems_flow_signal WHERE flow_id = %(flow_id)s AND step IS NULL AND uid <> %(uid)s LIMIT %(most)s) waiting

-- name: list_values
SELECT number, value, emitted_at FROM ems_flow_value WHERE flow_id = %(flow_id)s AND number > %(after)s ORDER BY number LIMIT %(limit)s

-- name: fence
UPDATE ems_flow SET changed_at = NOW(6) WHERE id = %(flow_id)s AND run = %(run)s AND state = 'running'

-- name: insert_steps
INSERT INTO ems_flow_step (flow_id, step, kind, name, branch, total, pending, topics, value, error_type, error, due_at, began_at, ended_at) VALUES

-- name: step_row
(%(flow_id)s,%(step)s,%(kind)s,%(name)s,%(branch)s,%(total)s,%(total)s,%(topics)s,%(value)s,%(error_type)s,%(error)s,%(due_at)s,NOW(6) - INTERVAL %(took_s)s SECOND,IF(%(is_ended)s, NOW(6), NULL))

-- name: end_step
UPDATE ems_flow_step SET value = %(value)s, error_type = %(error_type)s, error = %(error)s, ended_at = NOW(6)
WHERE flow_id = %(flow_id)s AND step = %(step)s

-- name: take_signal
UPDATE ems_flow_signal SET step = %(step)s WHERE flow_id = %(flow_id)s AND id = %(id)s

-- name: insert_values
INSERT INTO ems_flow_value (flow_id, number, value, emitted_at) VALUES

-- name: value_row
(%(flow_id)s,%(number)s,%(value)s,NOW(6))

-- name: set_state
UPDATE ems_flow SET state = %(state)s, waits = %(waits)s, value = %(value)s,
  error_type = COALESCE(%(error_type)s, error_type), error = COALESCE(%(error)s, error), undone = %(undone)s,
  ended_at = IF(%(is_ended)s, NOW(6), NULL) WHERE id = %(flow_id)s

-- name: count_ready
-- Signals beyond those that a run loads do not count: the next run would not see them either. Read after the flow's row was locked: what becomes ready later finds the flow waiting. A message whose time came while
-- the run was under way was passed over, so times that have come since it began count too.
SELECT (SELECT COUNT(*) FROM ems_flow_step WHERE flow_id = %(flow_id)s AND step IN %(steps)s AND pending = 0)
  + (SELECT COUNT(*) FROM (SELECT name FROM ems_flow_signal WHERE flow_id = %(flow_id)s AND step IS NULL ORDER BY id LIMIT %(loaded)s) loaded
    WHERE name IN %(signals)s)
  + (SELECT COUNT(*) FROM ems_flow_step WHERE flow_id = %(flow_id)s AND ended_at IS NULL AND due_at > %(since)s AND due_at <= NOW(6))
  + (SELECT COUNT(*) FROM ems_flow WHERE id = %(flow_id)s AND deadline_at > %(since)s AND deadline_at <= NOW(6))

-- name: lock_flow
-- Held until a signal is committed, at any isolation level: a flow that goes to wait meanwhile sees the signal. It also
-- makes the state that is read next the present one.
UPDATE %(database)s.ems_flow SET changed_at = UTC_TIMESTAMP(6) WHERE `key` = %(key)s

-- name: get_run
SELECT run FROM ems_flow WHERE id = %(flow_id)s

-- name: insert_ends
-- IGNORE: a call that is run again, because its dead letter was requeued for example, ends only once.
INSERT IGNORE INTO ems_flow_end (flow_id, step, number, value, error_type, error, ended_at) VALUES

-- name: end_row
(%(flow_id)s,%(step)s,%(number)s,%(value)s,%(error_type)s,%(error)s,NOW(6))

-- name: count_ends
-- NULL, which the table rejects, if the number is not known: after its client has died a server returns -1 and goes on to
-- the COMMIT, so that the flow would wait for ever.
UPDATE ems_flow_step SET pending = pending - IF(ROW_COUNT() < 0, NULL, ROW_COUNT()), ended_at = IF(pending = 0, NOW(6), NULL)
WHERE flow_id = %(flow_id)s AND step = %(step)s

-- name: wake_joined
-- Both rows are read by constants, so the flow's stays locked until the ack is committed, also while it runs: a flow that
-- goes to wait meanwhile sees that the call has ended.
UPDATE ems_flow_step s STRAIGHT_JOIN ems_flow f ON f.id = s.flow_id
SET f.state = 'ready', f.owner = %(owner)s, f.waits = NULL, f.changed_at = NOW(6)
WHERE s.flow_id = %(flow_id)s AND s.step = %(step)s AND s.pending = 0 AND f.state = 'waiting'

-- name: wake_waiting
UPDATE %(database)s.ems_flow SET state = 'ready', owner = %(owner)s, waits = NULL, changed_at = UTC_TIMESTAMP(6)
WHERE id = %(flow_id)s AND state = 'waiting' AND begins_at IS NULL

-- name: send_later
-- A message that runs the flow at a time, with the headers of the first one.
INSERT INTO %(database)s.ems_outbox (topic_id, due_at, `partition`, uid, `key`, tag, headers, body, producer_id, created_at, level)
SELECT topic_id, %(due_at)s, NULL, %(uid)s, NULL, NULL, headers, CONCAT('[[', id, '],{}]'), 'flows', UTC_TIMESTAMP(6), level
FROM %(database)s.ems_flow WHERE id = %(flow_id)s

-- name: insert_signal
INSERT INTO %(database)s.ems_flow_signal (flow_id, uid, name, value, sent_at)
VALUES (%(flow_id)s, %(uid)s, %(name)s, %(value)s, UTC_TIMESTAMP(6))

-- name: find_by_key
SELECT id, state FROM %(database)s.ems_flow WHERE `key` = %(key)s

-- name: cancel
UPDATE ems_flow SET state = 'cancelled', run = run + 1, waits = NULL, begins_at = NULL, changed_at = NOW(6), ended_at = NOW(6)
WHERE id = %(flow_id)s AND state IN ('ready', 'running', 'waiting')

-- name: get_runner
-- The message that runs a flow, or is to run it.
SELECT topic_id, owner FROM ems_flow WHERE id = %(flow_id)s

-- name: list_children
SELECT id FROM ems_flow WHERE parent LIKE %(prefix)s AND ended_at IS NULL

-- name: list_pending_calls
SELECT step, total, topics FROM ems_flow_step WHERE flow_id = %(flow_id)s AND pending > 0 AND topics IS NOT NULL

-- name: get_parent
SELECT state, id, parent FROM ems_flow WHERE id = %(flow_id)s
