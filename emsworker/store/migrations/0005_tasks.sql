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
