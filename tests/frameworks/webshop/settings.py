"""The settings of the project."""

import os

import django

ROOT_URLCONF = "webshop.urls"
SECRET_KEY = "of a test"
ALLOWED_HOSTS = ["*"]
USE_TZ = True
DEFAULT_AUTO_FIELD = "django.db.models.BigAutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.mysql",
        "NAME": os.environ["DB_NAME"],
        "USER": os.environ["DB_USER"],
        "PASSWORD": os.environ["DB_PASSWORD"],
        "HOST": os.environ["DB_HOST"],
        "PORT": os.environ["DB_PORT"],
        "CONN_MAX_AGE": 600,
        "ATOMIC_REQUESTS": True,
        "TEST": {"NAME": os.environ["DB_NAME"]},
    }
}
INSTALLED_APPS = [*([] if django.VERSION >= (6, 0) else ["django_tasks"]), "emsworker.django", "webshop"]
TASKS = {
    "default": {
        "BACKEND": "emsworker.django.EmsBackend",
        "QUEUES": ["default", "mail"],
        "OPTIONS": {"ladder": "50ms", "max_attempts": 2},
    }
}
