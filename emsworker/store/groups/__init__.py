"""What groups do with the stream: claims, progress, retries, dead letters, cursors, results."""
