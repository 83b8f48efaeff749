"""Checks that look at the project as a whole, and are not part of what a developer runs all day."""
