"""Tables."""

from django.db import models


class Order(models.Model):
    """An order."""

    number = models.IntegerField(primary_key=True)
