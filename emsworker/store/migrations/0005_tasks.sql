-- What tasks leave behind when somebody asked for it: their results.

CREATE TABLE IF NOT EXISTS ems_result (
  topic_id INT UNSIGNED NOT NULL,
  uid BINARY(16) NOT NULL,
  group_id INT UNSIGNED NOT NULL,
  state ENUM('done', 'failed') NOT NULL,
  body LONGBLOB NULL,
  error_type VARCHAR(255) NULL,
  error TEXT NULL,
  traceback TEXT NULL,
  ended_at DATETIME(6) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  PRIMARY KEY (topic_id, uid, group_id),
  KEY expires (expires_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- What is to be sent at set times. The beat needs no app: the call is kept here as it was declared.

CREATE TABLE IF NOT EXISTS ems_schedule (
  name VARCHAR(190) NOT NULL,
  spec VARCHAR(200) NOT NULL,
  timezone VARCHAR(64) NOT NULL,
  catch_up ENUM('last', 'all', 'none') NOT NULL,
  topic_id INT UNSIGNED NOT NULL,
  `key` VARBINARY(255) NULL,
  headers MEDIUMBLOB NOT NULL,
  body LONGBLOB NOT NULL,
  next_at DATETIME(6) NOT NULL,
  last_at DATETIME(6) NULL,
  declared_at DATETIME(6) NOT NULL,
  PRIMARY KEY (name),
  KEY next_at (next_at)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;

-- Effects that are to happen once although their messages may come again.

CREATE TABLE IF NOT EXISTS ems_once (
  effect VARBINARY(255) NOT NULL,
  state ENUM('begun', 'done') NOT NULL,
  token BINARY(16) NOT NULL,
  until_at DATETIME(6) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  PRIMARY KEY (effect),
  KEY expires (expires_at)
) ENGINE=InnoDB;
