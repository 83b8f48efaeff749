-- Idempotent publishing, and messages that were cancelled.

CREATE TABLE IF NOT EXISTS ems_dedup (
  topic_id INT UNSIGNED NOT NULL,
  `key` VARBINARY(255) NOT NULL,
  uid BINARY(16) NOT NULL,
  expires_at DATETIME(6) NOT NULL,
  look_at DATETIME(6) NOT NULL,
  PRIMARY KEY (topic_id, `key`),
  KEY look (look_at)
) ENGINE=InnoDB;

ALTER TABLE ems_message MODIFY kind ENUM('message', 'tombstone', 'cancelled') NOT NULL DEFAULT 'message';
