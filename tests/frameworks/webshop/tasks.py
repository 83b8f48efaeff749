"""The tasks of the project, found by a worker by itself."""

import django
from django.db import connection, transaction
from webshop.models import Order

from emsworker.django import options

if django.VERSION >= (6, 0):
    from django.tasks import task
else:
    from django_tasks import task


@task()
def bill(order_id: int) -> dict[str, int]:
    order = Order.objects.get(id=order_id)
    order.billed += 1
    order.save()
    return {"amount": order.amount}


@task(queue_name="mail", priority=-20, takes_context=True)
def late(context, order_id: int) -> int:
    """Fails once."""
    if context.attempt == 1:
        raise Order.DoesNotExist(f"order {order_id} is not there yet")
    return int(context.attempt)


@task()
@options(max_attempts=1)
def fail(*, why: str) -> None:
    raise LookupError(why)


@task()
@options(max_attempts=1, soft_time_limit_s=0.1)
def sleep() -> None:
    with transaction.atomic(), connection.cursor() as cursor:
        cursor.execute("SELECT SLEEP(0.3)")


@task()
async def count() -> int:
    return await Order.objects.acount()
