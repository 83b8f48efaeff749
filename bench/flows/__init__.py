"""Flows of EMS beside DBOS on PostgreSQL and Celery's canvas on Redis and RabbitMQ; and flows that sleep."""
