-- Flows: many steps with one outcome. A flow is one row; its steps, the ends of the calls that they wait for, the signals
-- that it was given and the values that it emits are rows of its own. One that is being deleted has no key. The CHECKs keep
-- out what a producer could write and no program could read, count on, or end. undone: its steps were, so it is over.

CREATE TABLE IF NOT EXISTS ems_flow (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  `key` VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NULL,
  name VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  version INT UNSIGNED NOT NULL,
  topic_id INT UNSIGNED NOT NULL,
  state ENUM('ready', 'running', 'waiting', 'done', 'failed', 'cancelled', 'deleted') NOT NULL,
  run INT UNSIGNED NOT NULL DEFAULT 0,
  owner BINARY(16) NOT NULL,
  level TINYINT UNSIGNED NOT NULL DEFAULT 0,
  headers MEDIUMBLOB NOT NULL,
  args MEDIUMBLOB NOT NULL,
  waits VARCHAR(190) CHARACTER SET utf8mb4 NULL,
  value MEDIUMBLOB NULL,
  error_type VARCHAR(190) CHARACTER SET utf8mb4 NULL,
  error TEXT CHARACTER SET utf8mb4 NULL,
  undone BOOLEAN NOT NULL DEFAULT FALSE,
  parent VARCHAR(64) CHARACTER SET ascii COLLATE ascii_bin NULL,
  next_step INT UNSIGNED NOT NULL DEFAULT 1,
  started_at DATETIME(6) NOT NULL,
  changed_at DATETIME(6) NOT NULL,
  begins_at DATETIME(6) NULL,
  deadline_at DATETIME(6) NULL,
  ended_at DATETIME(6) NULL,
  PRIMARY KEY (id),
  UNIQUE KEY `key` (`key`),
  KEY state (state, changed_at),
  KEY ended (ended_at),
  KEY parent (parent),
  CONSTRAINT ems_flow_sound CHECK (state <> '' AND (`key` IS NOT NULL OR state = 'deleted') AND run < 2147483648 AND next_step < 2147483648
    AND (parent IS NULL OR parent REGEXP '^[0-9]{1,19}[.][0-9]{1,9}[.][0-9]{1,9}$')
    AND started_at > '1970-01-01' AND changed_at > '1970-01-01' AND (begins_at IS NULL OR begins_at > '1970-01-01')
    AND (deadline_at IS NULL OR deadline_at > '1970-01-01'))
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_flow_step (
  flow_id BIGINT UNSIGNED NOT NULL,
  step INT UNSIGNED NOT NULL,
  kind ENUM('step', 'transaction', 'call', 'gather', 'sleep', 'wait', 'undo', 'undone', 'emit', 'patch') NOT NULL,
  name VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  branch VARCHAR(190) CHARACTER SET ascii COLLATE ascii_bin NOT NULL DEFAULT '',
  total INT UNSIGNED NOT NULL DEFAULT 0,
  pending INT UNSIGNED NOT NULL DEFAULT 0,
  topics VARCHAR(4000) CHARACTER SET ascii COLLATE ascii_bin NULL,
  value MEDIUMBLOB NULL,
  error_type VARCHAR(190) CHARACTER SET utf8mb4 NULL,
  error TEXT CHARACTER SET utf8mb4 NULL,
  due_at DATETIME(6) NULL,
  began_at DATETIME(6) NOT NULL,
  ended_at DATETIME(6) NULL,
  PRIMARY KEY (flow_id, step)
) ENGINE=InnoDB;

-- The ends of the calls that a step waits for, written with their acks.

CREATE TABLE IF NOT EXISTS ems_flow_end (
  flow_id BIGINT UNSIGNED NOT NULL,
  step INT UNSIGNED NOT NULL,
  number INT UNSIGNED NOT NULL,
  value MEDIUMBLOB NULL,
  error_type VARCHAR(190) CHARACTER SET utf8mb4 NULL,
  error TEXT CHARACTER SET utf8mb4 NULL,
  ended_at DATETIME(6) NOT NULL,
  PRIMARY KEY (flow_id, step, number)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_flow_signal (
  id BIGINT UNSIGNED NOT NULL AUTO_INCREMENT,
  flow_id BIGINT UNSIGNED NOT NULL,
  uid BINARY(16) NOT NULL,
  name VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  value MEDIUMBLOB NOT NULL,
  size INT UNSIGNED GENERATED ALWAYS AS (LENGTH(value)) STORED,
  step INT UNSIGNED NULL,
  sent_at DATETIME(6) NOT NULL,
  PRIMARY KEY (flow_id, id),
  KEY id (id),
  UNIQUE KEY uid (flow_id, uid),
  CONSTRAINT ems_flow_signal_sound CHECK (sent_at > '1970-01-01')
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_flow_value (
  flow_id BIGINT UNSIGNED NOT NULL,
  number INT UNSIGNED NOT NULL,
  value MEDIUMBLOB NOT NULL,
  emitted_at DATETIME(6) NOT NULL,
  PRIMARY KEY (flow_id, number)
) ENGINE=InnoDB;

CREATE TABLE IF NOT EXISTS ems_flow_attribute (
  name VARCHAR(64) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  value VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  flow_id BIGINT UNSIGNED NOT NULL,
  PRIMARY KEY (name, value, flow_id),
  KEY flow (flow_id)
) ENGINE=InnoDB;

-- The flow of each burst of starts that has not begun yet; its row is the lock of the burst.

CREATE TABLE IF NOT EXISTS ems_flow_debounce (
  name VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  `key` VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  flow VARCHAR(190) CHARACTER SET utf8mb4 COLLATE utf8mb4_bin NOT NULL,
  PRIMARY KEY (name, `key`)
) ENGINE=InnoDB;
