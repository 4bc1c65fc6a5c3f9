"""The tasks of `bullpen demo`, written as in a file of your own. The demo copies this file beside its database:

bullpen worker app.py
"""

import asyncio
import random
import time
from pathlib import Path

from bullpen import TaskQueue, current_task

queue = TaskQueue(f"sqlite:///{Path(__file__).resolve().with_name('jobs.db')}")


@queue.task
async def render_page(page: int) -> str:
    await asyncio.sleep(random.uniform(0.005, 0.03))
    return f"<h1>page {page}</h1>"


@queue.task
def resize_image(name: str, width: int) -> str:
    """Not async: it runs on a thread."""
    time.sleep(random.uniform(0.002, 0.01))
    return f"{name}-{width}.jpg"


@queue.task(max_retries=3, backoff=0.1)
async def send_email(to: str) -> None:
    """The mail server is sometimes busy; then the task is retried."""
    await asyncio.sleep(0.01)
    if current_task().failures == 0 and hash_of(to) % 8 == 0:
        raise ConnectionError("the mail server is busy")


class CardDeclined(Exception):
    pass


@queue.task(max_retries=3, give_up_on=CardDeclined)
async def charge_card(order: int) -> int:
    """A retry would not help, so the task fails for good."""
    await asyncio.sleep(0.01)
    if order % 10 == 0:
        raise CardDeclined(f"the card of order {order} was declined")
    return order


@queue.task(queue="reports", timeout=30)
async def write_report(name: str) -> str:
    """Slow, and reports its progress."""
    for page in range(1, 11):
        await asyncio.sleep(0.15)
        current_task().progress(page, 10, "pages")
    return f"{name}.pdf"


@queue.task
async def check_stock(shop: str) -> int:
    """Periodic: the end of each run plans the next one."""
    await asyncio.sleep(0.005)
    return len(shop)


def hash_of(text: str) -> int:
    return sum(text.encode())


def enqueue_all(tasks: int) -> int:
    """Enqueue about `tasks` tasks of all kinds. Returns how many of them are not periodic."""
    mails, cards, reports = max(tasks // 8, 8), max(tasks // 20, 10), 4
    images = max(tasks // 5, 1)
    pages = max(tasks - mails - cards - reports - images, 1)
    for shop in ("north", "south"):
        check_stock.using(interval=0.5, unique_key=f"stock of {shop}").enqueue(shop)
    write_report.enqueue_many([(f"report-{number}",) for number in range(reports)])
    render_page.enqueue_many([(page,) for page in range(pages)])
    resize_image.enqueue_many([{"name": f"image-{number}", "width": 640} for number in range(images)])
    send_email.enqueue_many([(f"customer-{number}@example.org",) for number in range(mails)])
    charge_card.using(priority=9).enqueue_many([(order,) for order in range(cards)])  # before all others
    return mails + cards + reports + images + pages
