-- name: declare_exchange
INSERT INTO ems_exchange (name, kind, declared_at) VALUES (%(name)s, %(kind)s, NOW(6)) ON DUPLICATE KEY UPDATE name = name

-- name: get_exchange
SELECT name, kind, bus FROM ems_exchange WHERE name = %(name)s

-- name: set_bus
UPDATE ems_exchange SET bus = %(bus)s WHERE name = %(name)s AND bus IS NULL

-- name: delete_exchange
DELETE FROM ems_exchange WHERE name = %(name)s

-- name: declare_queue
-- The settings are those of the last declaration.
INSERT INTO ems_queue (name, topic, message_ttl_ms, expires_ms, declared_at, used_at)
VALUES (%(name)s, %(topic)s, %(message_ttl_ms)s, %(expires_ms)s, NOW(6), NOW(6))
ON DUPLICATE KEY UPDATE message_ttl_ms = VALUES(message_ttl_ms), expires_ms = VALUES(expires_ms), used_at = NOW(6)

-- name: get_queue
SELECT name, topic, message_ttl_ms, expires_ms FROM ems_queue WHERE name = %(name)s

-- name: list_queues
SELECT name, topic, message_ttl_ms, expires_ms FROM ems_queue ORDER BY name

-- name: use_queues
UPDATE ems_queue SET used_at = NOW(6) WHERE name IN %(names)s

-- name: list_unused
-- Queues that expire and were not used for that long.
SELECT name, topic, message_ttl_ms, expires_ms FROM ems_queue FORCE INDEX (expiring)
WHERE expires_ms > 0 AND used_at < NOW(6) - INTERVAL expires_ms * 1000 MICROSECOND

-- name: delete_queue
DELETE FROM ems_queue WHERE name = %(name)s

-- name: delete_unused
-- Unless somebody has used it meanwhile.
DELETE FROM ems_queue WHERE name = %(name)s AND expires_ms > 0 AND used_at < NOW(6) - INTERVAL expires_ms * 1000 MICROSECOND

-- name: bind
INSERT INTO ems_binding (exchange, kind, target, routing_key) VALUES (%(exchange)s, %(kind)s, %(target)s, %(routing_key)s)
ON DUPLICATE KEY UPDATE target = target

-- name: unbind
DELETE FROM ems_binding WHERE exchange = %(exchange)s AND kind = %(kind)s AND target = %(target)s AND routing_key = %(routing_key)s

-- name: unbind_target
DELETE FROM ems_binding WHERE kind = %(kind)s AND target = %(target)s

-- name: unbind_exchange
DELETE FROM ems_binding WHERE exchange = %(exchange)s

-- name: find_ways
-- An exchange with its bindings; a row without one if it has none.
SELECT e.name, e.kind, e.bus, b.routing_key, b.kind, b.target
FROM ems_exchange e LEFT JOIN ems_binding b ON b.exchange = e.name WHERE e.name = %(name)s

-- name: list_bindings
SELECT exchange, routing_key, kind, target FROM ems_binding ORDER BY exchange, kind, target, routing_key
