"""The tables of the project."""

from django.db import models


class Order(models.Model):
    amount = models.IntegerField()
    billed = models.IntegerField(default=0)
