-- Results of Celery applications, as key and value. is_final: 0 may still change; 1 is a success, which nothing
-- overwrites until it has expired; 2 is the same, and another outcome was refused. expires_at NULL: kept for ever.

CREATE TABLE IF NOT EXISTS ems_celery_result (
  name VARBINARY(512) NOT NULL,
  is_final TINYINT UNSIGNED NOT NULL,
  body LONGBLOB NOT NULL,
  expires_at DATETIME(6) NULL,
  PRIMARY KEY (name),
  KEY expires (expires_at)
) ENGINE=InnoDB;

-- A chord is done when size + added of its parts have arrived; its body is sent by the transaction that sets is_done.
-- size NULL: the sender has not counted the parts yet.

CREATE TABLE IF NOT EXISTS ems_celery_chord (
  name VARBINARY(512) NOT NULL,
  size INT UNSIGNED NULL,
  added INT UNSIGNED NOT NULL,
  arrived INT UNSIGNED NOT NULL,
  is_done BOOLEAN NOT NULL,
  expires_at DATETIME(6) NULL,
  PRIMARY KEY (name),
  KEY expires (expires_at)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_celery_chord_part (
  chord VARBINARY(512) NOT NULL,
  number BIGINT UNSIGNED NOT NULL,
  task_id VARBINARY(512) NOT NULL,
  body LONGBLOB NOT NULL,
  PRIMARY KEY (chord, number, task_id)
) ENGINE=InnoDB;

-- Tasks that were revoked by their ids. A worker asks before it runs a task for later.

CREATE TABLE IF NOT EXISTS ems_celery_revoked (
  task_id VARBINARY(255) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  PRIMARY KEY (task_id),
  KEY expires (expires_at)
) ENGINE=InnoDB;

-- The last run of each entry of a Celery beat's schedule; the entries themselves are in the application's code.

CREATE TABLE IF NOT EXISTS ems_celery_schedule (
  app VARBINARY(255) NOT NULL,
  name VARBINARY(512) NOT NULL,
  last_run_at DATETIME(6) NOT NULL,
  runs BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (app, name)
) ENGINE=InnoDB;

-- Exchanges, queues and bindings, for programs that speak AMQP's model: Celery and kombu.

CREATE TABLE IF NOT EXISTS ems_exchange (
  name VARBINARY(255) NOT NULL,
  kind ENUM('direct', 'topic', 'fanout') NOT NULL,
  bus VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  declared_at DATETIME(6) NOT NULL,
  PRIMARY KEY (name)
) ENGINE=InnoDB;

-- Each queue is a topic with one group. One that expires is deleted once no program has used it for that long.

CREATE TABLE IF NOT EXISTS ems_queue (
  name VARBINARY(255) NOT NULL,
  topic VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  message_ttl_ms BIGINT UNSIGNED NULL,
  expires_ms BIGINT UNSIGNED NULL,
  declared_at DATETIME(6) NOT NULL,
  used_at DATETIME(6) NOT NULL,
  PRIMARY KEY (name),
  KEY expiring (expires_ms)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_binding (
  exchange VARBINARY(255) NOT NULL,
  kind ENUM('queue', 'exchange') NOT NULL,
  target VARBINARY(255) NOT NULL,
  routing_key VARBINARY(255) NOT NULL,
  PRIMARY KEY (exchange, kind, target, routing_key),
  KEY target (kind, target)
) ENGINE=InnoDB;
