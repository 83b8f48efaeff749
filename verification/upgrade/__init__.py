"""Upgrades from released versions, proven with a version 1.1 that exists only here."""
