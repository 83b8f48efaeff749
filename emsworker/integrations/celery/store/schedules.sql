-- name: list_runs
SELECT name, last_run_at, runs FROM ems_celery_schedule WHERE app = %(app)s

-- name: add_runs
-- An entry that is new in the code counts from now on.
INSERT INTO ems_celery_schedule (app, name, last_run_at, runs) VALUES

-- name: run_row
(%(app)s,%(name)s,%(last_run_at)s,%(runs)s)

-- name: keep_runs
ON DUPLICATE KEY UPDATE runs = runs

-- name: advance
-- The fence of each slot: one of several schedulers changes the row, and sends the task in the same transaction.
UPDATE ems_celery_schedule SET last_run_at = %(next_run_at)s, runs = runs + 1
WHERE app = %(app)s AND name = %(name)s AND last_run_at = %(last_run_at)s

-- name: delete_runs
DELETE FROM ems_celery_schedule WHERE app = %(app)s AND name IN %(names)s
