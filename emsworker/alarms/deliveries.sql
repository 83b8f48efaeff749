-- name: begin_alarm
-- A measurement that is too old changes nothing: its process was paused, and another one may lead by now.
INSERT IGNORE INTO ems_alarm (rule, topic, group_name, alarm_id, state, value, since)
SELECT %(rule)s, %(topic)s, %(group)s, %(alarm_id)s, 'pending', %(value)s, %(measured_at)s FROM DUAL
WHERE NOW(6) < %(measured_at)s + INTERVAL %(fresh_s)s SECOND

-- name: fire_alarm
UPDATE ems_alarm SET state = 'firing', value = %(value)s, fired_at = NOW(6), told_at = IF(%(muted)s = 1, NULL, NOW(6))
WHERE rule = %(rule)s AND topic = %(topic)s AND group_name = %(group)s AND alarm_id = %(alarm_id)s AND state = 'pending'
AND NOW(6) < %(measured_at)s + INTERVAL %(fresh_s)s SECOND

-- name: repeat_alarm
-- Only one beat repeats it: told_at is as the measurement found it.
UPDATE ems_alarm SET value = %(value)s, told_at = NOW(6)
WHERE rule = %(rule)s AND topic = %(topic)s AND group_name = %(group)s AND alarm_id = %(alarm_id)s AND state = 'firing'
AND told_at <=> %(told_at)s AND NOW(6) < %(measured_at)s + INTERVAL %(fresh_s)s SECOND

-- name: end_alarm
DELETE FROM ems_alarm WHERE rule = %(rule)s AND topic = %(topic)s AND group_name = %(group)s AND alarm_id = %(alarm_id)s
AND NOW(6) < %(measured_at)s + INTERVAL %(fresh_s)s SECOND

-- name: add_event
INSERT INTO ems_alarm_event (alarm_id, rule, target, body, created_at, due_at) VALUES (%(alarm_id)s, %(rule)s, %(target)s, %(body)s, NOW(6), NOW(6))

-- name: count_events
-- Deliveries of an alarm to one kind of receiver that are still to be made.
SELECT COUNT(*) FROM ems_alarm_event WHERE alarm_id = %(alarm_id)s AND target = %(target)s

-- name: find_overdue_event
-- A delivery that has failed for long, if there is one.
SELECT event_id FROM ems_alarm_event WHERE created_at < NOW(6) - INTERVAL %(age_s)s SECOND LIMIT 1

-- name: list_due_events
-- The first event of each alarm and target, so that `resolved` is delivered after `firing`.
SELECT e.event_id, e.rule, e.target, e.body, e.tries, COALESCE(TIMESTAMPDIFF(SECOND, e.created_at, NOW(6)), 0), r.webhook, r.slack, r.alertmanager, r.command
FROM ems_alarm_event e JOIN ems_alarm_rule r ON r.name = e.rule WHERE e.due_at <= NOW(6)
AND NOT EXISTS (SELECT 1 FROM ems_alarm_event p WHERE p.alarm_id = e.alarm_id AND p.target = e.target AND p.event_id < e.event_id)
ORDER BY e.due_at LIMIT %(limit)s

-- name: take_event
-- Taken for as long as a delivery may take; if its process dies, it is delivered again after that time.
UPDATE ems_alarm_event SET due_at = NOW(6) + INTERVAL %(taken_s)s SECOND, tries = tries + 1 WHERE event_id = %(event_id)s AND due_at <= NOW(6)

-- name: postpone_event
UPDATE ems_alarm_event SET due_at = NOW(6) + INTERVAL %(delay_s)s SECOND WHERE event_id = %(event_id)s

-- name: delete_event
DELETE FROM ems_alarm_event WHERE event_id = %(event_id)s
