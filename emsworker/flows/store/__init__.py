"""Flows in the database: what a run writes, what an ack writes, and what wakes a flow."""
