"""Observation: metrics, and delivery of alarms to people and programs."""
