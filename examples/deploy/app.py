"""The app that the other files here deploy."""

import asyncio
import os

from bullpen import TaskQueue

queue = TaskQueue(os.environ.get("BULLPEN_URL", "sqlite:///jobs.db"))


@queue.task(max_retries=5, timeout=60)
async def send_email(to: str) -> str:
    await asyncio.sleep(0.1)
    return f"sent to {to}"
