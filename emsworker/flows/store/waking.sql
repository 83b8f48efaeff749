-- name: send_wake
-- The message is sent only if the flow was woken just before: the owner is new each time.
INSERT INTO %(database)s.ems_outbox (topic_id, due_at, `partition`, uid, `key`, tag, headers, body, producer_id, created_at, level)
SELECT topic_id, UTC_TIMESTAMP(6), NULL, owner, NULL, NULL, headers, CONCAT('[[', id, '],{}]'), 'flows', UTC_TIMESTAMP(6), level
FROM %(database)s.ems_flow WHERE id = %(flow_id)s AND owner = %(owner)s AND state = 'ready'
