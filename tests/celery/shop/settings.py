"""Settings; the test says where the servers are."""

import os
from urllib.parse import urlsplit

_url = urlsplit(os.environ["SHOP_DATABASE"])

SECRET_KEY = "of a test"
USE_TZ = True
INSTALLED_APPS = ["django.contrib.contenttypes", "django_celery_beat", "django_celery_results", "tests.celery.shop"]
DEFAULT_AUTO_FIELD = "django.db.models.AutoField"
DATABASES = {
    "default": {
        "ENGINE": "django.db.backends.mysql",
        "NAME": _url.path.lstrip("/"),
        "HOST": _url.hostname,
        "PORT": _url.port,
        "USER": _url.username,
        "PASSWORD": _url.password or "",
    }
}
CELERY_BROKER_URL = os.environ["SHOP_BROKER"]
CELERY_RESULT_BACKEND = os.environ.get("SHOP_RESULTS", "django-db")
CELERY_BROKER_CONNECTION_RETRY_ON_STARTUP = True
CELERY_BEAT_MAX_LOOP_INTERVAL = 1
