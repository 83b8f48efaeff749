-- name: use_database
USE %(database)s

-- name: unset_autocommit
-- For a lent transaction: statements after a rollback by the server are never committed by themselves.
SET SESSION autocommit = 0

-- name: unset_idle_timeout
-- For a lent transaction in a Galera cluster.
SET SESSION idle_transaction_timeout = 0

-- name: mark_transaction
-- A savepoint ends with its transaction: it proves that the transaction that is committed is the one that began.
SAVEPOINT ems_transaction

-- name: prove_transaction
-- Ends the packet with error 1305 if the transaction has been committed or rolled back meanwhile, for any reason.
RELEASE SAVEPOINT ems_transaction

-- name: release_locks
DO RELEASE_ALL_LOCKS()

-- name: unlock_tables
UNLOCK TABLES

-- name: begin
START TRANSACTION

-- name: commit
COMMIT

-- name: rollback
ROLLBACK

-- name: assert_one_matched
-- Ends the packet with error 1242 (two rows in a scalar subquery) unless the previous statement matched one row: the
-- fence of every ending statement, without a round trip and without holding locks while the client computes. If the
-- client has died meanwhile, MySQL may report -1 instead of 1: then the packet ends too, and all is rolled back.
SET @ems_one = (SELECT 1 UNION ALL SELECT 2 FROM DUAL WHERE ROW_COUNT() <> 1)
