-- name: list_holders_mariadb
-- The transactions that others wait for at our tables, and that wait for nobody themselves. Needs the privilege PROCESS.
-- The server reads these lists anew only if nobody has read them for a tenth of a second.
SELECT b.trx_id, b.trx_mysql_thread_id, MIN(COALESCE(p.USER, '')), MIN(COALESCE(p.HOST, '')), MIN(REPLACE(SUBSTRING_INDEX(l.lock_table, '.', -1), '`', '')),
  COUNT(DISTINCT w.requesting_trx_id)
FROM information_schema.INNODB_LOCK_WAITS w JOIN information_schema.INNODB_LOCKS l ON l.lock_id = w.blocking_lock_id
JOIN information_schema.INNODB_TRX b ON b.trx_id = w.blocking_trx_id LEFT JOIN information_schema.PROCESSLIST p ON p.ID = b.trx_mysql_thread_id
WHERE LEFT(l.lock_table, LENGTH(DATABASE()) + 8) = CONCAT('`', DATABASE(), '`.`ems_') AND b.trx_state <> 'LOCK WAIT'
GROUP BY b.trx_id, b.trx_mysql_thread_id

-- name: list_holders_mysql
-- The same. Needs SELECT on these tables of performance_schema, which are empty if it is off.
SELECT l.ENGINE_TRANSACTION_ID, b.PROCESSLIST_ID, MIN(COALESCE(b.PROCESSLIST_USER, '')), MIN(COALESCE(b.PROCESSLIST_HOST, '')), MIN(l.OBJECT_NAME),
  COUNT(DISTINCT w.REQUESTING_ENGINE_TRANSACTION_ID)
FROM performance_schema.data_lock_waits w JOIN performance_schema.data_locks l ON l.ENGINE_LOCK_ID = w.BLOCKING_ENGINE_LOCK_ID
JOIN performance_schema.threads b ON b.THREAD_ID = w.BLOCKING_THREAD_ID
WHERE l.OBJECT_SCHEMA = DATABASE() AND LEFT(l.OBJECT_NAME, 4) = 'ems_' AND NOT EXISTS (
  SELECT 1 FROM performance_schema.data_lock_waits x WHERE x.REQUESTING_ENGINE_TRANSACTION_ID = w.BLOCKING_ENGINE_TRANSACTION_ID)
GROUP BY l.ENGINE_TRANSACTION_ID, b.PROCESSLIST_ID
