"""The integration suites of Celery and kombu, unmodified, with EMS as broker and result backend."""
