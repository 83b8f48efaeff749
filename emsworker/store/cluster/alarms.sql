-- name: add_rule
INSERT INTO ems_alarm_rule (name, metric, above, for_s, within_s, least, topic, group_name, webhook, command, repeat_s, slack, alertmanager, created_at)
VALUES (%(name)s, %(metric)s, %(above)s, %(for_s)s, %(within_s)s, %(least)s, %(topic)s, %(group)s, %(webhook)s, %(command)s, %(repeat_s)s, %(slack)s, %(alertmanager)s, NOW(6))
ON DUPLICATE KEY UPDATE name = VALUES(name)

-- name: list_rules
SELECT name, metric, above, for_s, within_s, least, topic, group_name, webhook, command, repeat_s, slack, alertmanager FROM ems_alarm_rule ORDER BY name

-- name: list_rules_only
SELECT name, metric, above, for_s, within_s, least, topic, group_name, NULL, NULL, repeat_s FROM ems_alarm_rule ORDER BY name

-- name: lock_rule
-- Locked by every transaction that changes a rule or writes an alarm of it.
SELECT name FROM ems_alarm_rule WHERE name = %(name)s FOR UPDATE

-- name: delete_rule
DELETE FROM ems_alarm_rule WHERE name = %(name)s

-- name: delete_alarms
DELETE FROM ems_alarm WHERE rule = %(name)s

-- name: list_events_of_rule
SELECT event_id FROM ems_alarm_event WHERE rule = %(name)s

-- name: delete_event
DELETE FROM ems_alarm_event WHERE event_id = %(event_id)s

-- name: list_firing
SELECT rule, topic, group_name FROM ems_alarm WHERE state = 'firing' ORDER BY rule, topic, group_name

-- name: list_alarms
SELECT rule, topic, group_name, alarm_id, state = 'firing', value, since, fired_at, told_at FROM ems_alarm ORDER BY rule, topic, group_name

-- name: list_backlogs
-- Each cursor with its partition's last offset and its first retry: index dives only, whatever the backlog.
SELECT t.name, g.name, g.id, t.id, g.paused = 1 OR t.rule NOT IN ('rw', 'r'), c.`partition`, c.next_offset,
  COALESCE((SELECT m.`offset` FROM ems_message m FORCE INDEX (PRIMARY) WHERE m.topic_id = t.id AND m.`partition` = c.`partition`
    ORDER BY m.topic_id DESC, m.`partition` DESC, m.`offset` DESC LIMIT 1), 0),
  (SELECT r.`offset` FROM ems_retry r FORCE INDEX (PRIMARY) WHERE r.group_id = g.id AND r.`partition` = c.`partition`
    ORDER BY r.group_id, r.`partition`, r.`offset` LIMIT 1)
FROM ems_cursor c JOIN ems_group g ON g.id = c.group_id JOIN ems_topic t ON t.id = g.topic_id

-- name: list_claims
-- Live claims only, of which there are few. A claim that is held back (not_before) counts as one that is worked on.
SELECT group_id, `partition`, SUM(IF(source = 'stream', hi - acked_to, 0)), MIN(IF(source = 'stream', acked_to + 1, NULL)), 
  SUM(state = 'start' OR COALESCE(not_before > NOW(6), 0)),
  COALESCE(MAX(IF(state = 'start', TIMESTAMPDIFF(MICROSECOND, progress_at, NOW(6)) / 1000000, 0)), 0)
FROM ems_claim FORCE INDEX (live) WHERE state IN ('start', 'waiting') GROUP BY group_id, `partition`

-- name: get_age
SELECT COALESCE(TIMESTAMPDIFF(MICROSECOND, born_at, NOW(6)) / 1000000, 0) FROM ems_message FORCE INDEX (PRIMARY)
WHERE topic_id = %(topic_id)s AND `partition` = %(partition)s AND `offset` >= %(offset)s AND kind = 'message' ORDER BY `offset` LIMIT 1

-- name: count_retries
-- Counts at most up to the rule's limit.
SELECT COUNT(*) FROM (SELECT 1 FROM ems_retry FORCE INDEX (PRIMARY) WHERE group_id = %(group_id)s LIMIT %(limit)s) r

-- name: count_dead
SELECT COUNT(*) FROM (SELECT 1 FROM ems_dead FORCE INDEX (recent)
  WHERE group_id = %(group_id)s AND dead_at > NOW(6) - INTERVAL %(within_s)s SECOND LIMIT %(limit)s) d

-- name: count_attempts
-- The attempts in a span of time that failed, and those that were not a message's first: one range of the index. The
-- span is a second late: attempts that ended before that are committed by now.
SELECT COALESCE(SUM(outcome IN ('failed', 'rejected', 'timeout', 'orphaned')), 0), COALESCE(SUM(attempt > 1), 0) FROM ems_attempt FORCE INDEX (recent)
WHERE group_id = %(group_id)s AND ended_at > %(since)s - INTERVAL 1 SECOND AND ended_at <= %(until)s - INTERVAL 1 SECOND

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

-- name: add_silence
INSERT INTO ems_alarm_silence (rule, topic, group_name, reason, created_at, ends_at)
VALUES (%(rule)s, %(topic)s, %(group)s, %(reason)s, NOW(6), NOW(6) + INTERVAL %(for_s)s SECOND)

-- name: list_silences
SELECT silence_id, rule, topic, group_name, reason, ends_at FROM ems_alarm_silence WHERE ends_at > NOW(6) ORDER BY silence_id

-- name: delete_silence
DELETE FROM ems_alarm_silence WHERE silence_id = %(silence_id)s

-- name: delete_ended_silences
DELETE FROM ems_alarm_silence WHERE ends_at <= NOW(6)

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
