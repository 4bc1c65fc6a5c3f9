from django.http import HttpRequest, JsonResponse
from django.urls import path

from shop.tasks import send_receipt


def buy(request: HttpRequest, order: int) -> JsonResponse:
    result = send_receipt.enqueue(order, to="ada@example.org")
    return JsonResponse({"receipt": result.id})


def receipt(request: HttpRequest, result_id: str) -> JsonResponse:
    result = send_receipt.get_result(result_id)
    return JsonResponse({"status": result.status, "said": result.return_value if result.is_finished else None})


urlpatterns = [path("buy/<int:order>", buy), path("receipts/<str:result_id>", receipt)]
