-- name: add_rule
INSERT INTO ems_alarm_rule (name, metric, above, for_s, within_s, least, topic, group_name, webhook, command, repeat_s, slack, alertmanager, created_at)
VALUES (%(name)s, %(metric)s, %(above)s, %(for_s)s, %(within_s)s, %(least)s, %(topic)s, %(group)s, %(webhook)s, %(command)s, %(repeat_s)s, %(slack)s, %(alertmanager)s, NOW(6))
ON DUPLICATE KEY UPDATE name = VALUES(name)

-- name: list_rules
SELECT name, metric, above, for_s, within_s, least, topic, group_name, webhook, command, repeat_s, slack, alertmanager FROM ems_alarm_rule ORDER BY name

-- name: list_rules_only
SELECT name, metric, above, for_s, within_s, least, topic, group_name, NULL, NULL, repeat_s FROM ems_alarm_rule ORDER BY name

-- name: lock_rule
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

-- name: add_silence
INSERT INTO ems_alarm_silence (rule, topic, group_name, reason, created_at, ends_at)
VALUES (%(rule)s, %(topic)s, %(group)s, %(reason)s, NOW(6), NOW(6) + INTERVAL %(for_s)s SECOND)

-- name: list_silences
SELECT silence_id, rule, topic, group_name, reason, ends_at FROM ems_alarm_silence WHERE ends_at > NOW(6) ORDER BY silence_id

-- name: delete_silence
DELETE FROM ems_alarm_silence WHERE silence_id = %(silence_id)s

-- name: delete_ended_silences
DELETE FROM ems_alarm_silence WHERE ends_at <= NOW(6)
