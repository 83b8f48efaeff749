"""A Django project whose own tests run under each driver and each Django; see test_django.py."""

import os

if os.environ.get("DB_DRIVER", "pymysql") == "pymysql":
    import pymysql

    pymysql.install_as_MySQLdb()
