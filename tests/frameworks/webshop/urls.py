"""The views of the project; each request is a transaction (ATOMIC_REQUESTS)."""

from django.http import HttpRequest, JsonResponse
from django.urls import path
from webshop.models import Order
from webshop.tasks import bill


def order(request: HttpRequest, amount: int) -> JsonResponse:
    placed = Order.objects.create(amount=amount)
    result = bill.enqueue(placed.id)
    if amount > 1000:
        raise ValueError("too much")
    return JsonResponse({"id": result.id})


urlpatterns = [path("order/<int:amount>", order)]
