"""Plain tasks of Django. Only TASKS in the settings names Bullpen, which runs them."""

try:
    from django.tasks import task
except ImportError:  # before Django 6.0
    from django_tasks import task

from django.db import connection


@task(queue_name="mail", priority=10)
def send_receipt(order: int, to: str) -> str:
    with connection.cursor() as cursor:  # the database of the project, as in a view
        cursor.execute("SELECT 1")
    return f"receipt for order {order} sent to {to}"


@task(takes_context=True)
async def count_words(context, text: str) -> dict:
    return {"words": len(text.split()), "attempt": context.attempt}


@task
def fail(reason: str) -> None:
    raise ValueError(reason)
