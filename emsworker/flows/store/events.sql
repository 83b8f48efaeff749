-- name: send_event
-- In the transaction that has changed the flow. Without the topic nothing is sent.
INSERT INTO %(database)s.ems_outbox (topic_id, due_at, `partition`, uid, `key`, tag, headers, body, producer_id, created_at, level)
SELECT {event} WHERE f.id = %(flow_id)s

-- name: send_started
-- In the transaction that has started the flow, if it did; IGNORE: a start whose answer was lost is repeated.
INSERT IGNORE INTO %(database)s.ems_outbox (topic_id, due_at, `partition`, uid, `key`, tag, headers, body, producer_id, created_at, level)
SELECT {event} WHERE f.`key` = %(key)s AND f.owner = %(owner)s
