"""One Celery project on EMS, on Redis and on RabbitMQ, in turns: what the broker alone changes."""
