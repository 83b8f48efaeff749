"""Runs: a claim's messages and their handlers, from start to outcome."""
