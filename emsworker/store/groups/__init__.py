"""The side of the groups: claims, progress, retries, dead letters, cursors, results."""
