"""Celery on a stream: a transport for kombu, found by the URL ``ems+mysql://user:password@host:3306/database``.

Needs ``pip install 'emsworker[celery]'``. Nothing is imported here, because kombu loads a module of this package in the
middle of its own imports.
"""
