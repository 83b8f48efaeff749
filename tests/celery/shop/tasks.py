"""Tasks."""

from celery import shared_task


@shared_task
def bill(order: int) -> int:
    """Write a bill."""
    return order
