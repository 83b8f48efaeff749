-- Readers outside the groups that hold retention: how far each is, and until when it holds. The reader is the process
-- that took the name last; lost_at is set when a hold was not renewed in time, and retention goes on without it.

CREATE TABLE IF NOT EXISTS ems_hold (
  topic_id INT UNSIGNED NOT NULL,
  name VARCHAR(190) NOT NULL,
  `partition` SMALLINT UNSIGNED NOT NULL,
  held_from BIGINT UNSIGNED NOT NULL,
  next_offset BIGINT UNSIGNED NOT NULL,
  reader BINARY(16) NOT NULL,
  limit_s BIGINT UNSIGNED NOT NULL,
  begun_at DATETIME(6) NOT NULL,
  renewed_at DATETIME(6) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  lost_at DATETIME(6) NULL,
  PRIMARY KEY (topic_id, name, `partition`)
) ENGINE=InnoDB DEFAULT CHARSET=utf8mb4 COLLATE=utf8mb4_bin;
