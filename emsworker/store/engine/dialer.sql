-- name: get_identity
-- A session keeps the packet limit with which it began. The server's own name tells which one a router has chosen.
SELECT @@SESSION.max_allowed_packet, @@GLOBAL.hostname, @@GLOBAL.port

-- name: set_galera
-- Here a transaction is sent statement by statement, so that a client that is stopped in its middle would hold its
-- locks: the server ends it after some seconds. And a read waits until this node has applied what others committed.
SET SESSION idle_transaction_timeout = 10, SESSION wsrep_sync_wait = 1
