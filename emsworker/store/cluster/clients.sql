-- name: insert_clients
-- One row for each thread of a process.
INSERT INTO ems_client (client_id, process_id, name, started_at, renewed_at, expires_at, servers, tags) VALUES

-- name: client_row
(%(client_id)s,%(process_id)s,%(name)s,NOW(6),NOW(6),NOW(6) + INTERVAL %(lease_s)s SECOND,%(servers)s,%(tags)s)

-- name: renew_clients
UPDATE ems_client SET renewed_at = NOW(6), expires_at = NOW(6) + INTERVAL %(lease_s)s SECOND
WHERE client_id IN %(client_ids)s AND expires_at > NOW(6)

-- name: renew_process
-- By the renewer of a worker in a debugger, which may have stopped the threads that know the ids of its clients.
UPDATE ems_client SET renewed_at = NOW(6), expires_at = NOW(6) + INTERVAL %(lease_s)s SECOND
WHERE process_id = %(process_id)s AND expires_at > NOW(6)

-- name: revive_clients
-- Those that have expired, too. A claim that recovery has taken meanwhile stays taken: its row decides.
UPDATE ems_client SET renewed_at = NOW(6), expires_at = NOW(6) + INTERVAL %(lease_s)s SECOND
WHERE client_id IN %(client_ids)s

-- name: shorten_clients
-- Leases that were renewed while the server's clock was ahead: one that lives renews its lease again in time. The lease
-- is computed first, since it is made of both times.
UPDATE ems_client SET expires_at = NOW(6) + INTERVAL TIMESTAMPDIFF(MICROSECOND, renewed_at, expires_at) MICROSECOND,
  renewed_at = NOW(6) WHERE renewed_at > NOW(6) + INTERVAL 1 MINUTE

-- name: delete_process
-- Its parent saw it die, so there is no need to wait until its leases expire. A claim without a client is an orphan.
DELETE FROM ems_client WHERE process_id = %(process_id)s

-- name: delete_clients
DELETE FROM ems_client WHERE client_id IN %(client_ids)s

-- name: find_expired_clients
-- A plain read: if this service waited for a row that a renewal holds while the server is slow, recovery would wait
-- too.
SELECT client_id FROM ems_client WHERE expires_at < NOW(6)

-- name: lock_expired_clients
SELECT client_id FROM ems_client WHERE client_id IN %(client_ids)s AND expires_at < NOW(6) ORDER BY client_id FOR UPDATE SKIP LOCKED

-- name: delete_expired_clients
-- Only clients without a running claim: recovery comes first.
DELETE FROM ems_client WHERE client_id IN %(client_ids)s
AND NOT EXISTS (SELECT 1 FROM ems_claim c WHERE c.state = 'start' AND c.client_id = ems_client.client_id)

-- name: list_clients
SELECT client_id, process_id, name, started_at, renewed_at, expires_at, expires_at > NOW(6) FROM ems_client ORDER BY name, client_id

-- name: find_live
SELECT 1 FROM ems_client WHERE expires_at > NOW(6) LIMIT 1

-- name: list_named_servers
-- The servers that each live process knows by name.
SELECT DISTINCT name, process_id, servers FROM ems_client WHERE expires_at > NOW(6) ORDER BY name, process_id

-- name: list_tags
-- The tags of the live clients, each combination once.
SELECT DISTINCT tags FROM ems_client WHERE expires_at > NOW(6)

-- name: try_to_lead
-- A lease that ends later than any can was taken while the clock was ahead.
UPDATE ems_leader SET holder = %(holder)s, expires_at = NOW(6) + INTERVAL %(lease_s)s SECOND
WHERE service = %(service)s AND (holder = %(holder)s OR expires_at < NOW(6)
  OR expires_at > NOW(6) + INTERVAL %(lease_s)s SECOND + INTERVAL 1 MINUTE)

-- name: add_leader
INSERT IGNORE INTO ems_leader (service, holder, expires_at) VALUES (%(service)s, %(holder)s, NOW(6) + INTERVAL %(lease_s)s SECOND)

-- name: resign
DELETE FROM ems_leader WHERE service = %(service)s AND holder = %(holder)s

-- name: list_leaders
SELECT service, holder, expires_at, expires_at > NOW(6) FROM ems_leader ORDER BY service
