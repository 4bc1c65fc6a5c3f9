"""FastAPI, or any Starlette app: enqueue in a request, ask for the result in another one."""

import asyncio
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from typing import Annotated, Any

from fastapi import Depends, FastAPI, HTTPException
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer

from bullpen import AsyncWorkerPool, TaskNotFound, TaskQueue, TaskStatus

queue = TaskQueue(os.environ.get("BULLPEN_URL", "sqlite:///jobs.db"))


@queue.task(max_retries=3, timeout=30)
async def resize(picture: str, width: int) -> str:
    await asyncio.sleep(0.01)
    return f"{picture} at {width} px"


@asynccontextmanager
async def lifespan(app: FastAPI) -> AsyncIterator[None]:
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(queue)  # closed with the app
        if os.environ.get("WORKER_INSIDE"):  # for one small machine: a worker in the process of the server
            await stack.enter_async_context(AsyncWorkerPool(queue, concurrency=10, grace=10))
        yield


app = FastAPI(lifespan=lifespan)

USERS = {"token-of-ada": "ada", "token-of-bob": "bob"}  # replace this by your own authentication


def current_user(given: Annotated[HTTPAuthorizationCredentials, Depends(HTTPBearer())]) -> str:
    user = USERS.get(given.credentials)
    if user is None:
        raise HTTPException(401)
    return user


User = Annotated[str, Depends(current_user)]


@app.post("/pictures/{picture}", status_code=202)
async def enqueue(picture: str, user: User, width: int = 100) -> dict[str, str]:
    job = await resize.using(headers={"owner": user}).aenqueue(picture, width)
    return {"id": job.id}


@app.get("/tasks/{task_id}")
async def look(task_id: str, user: User) -> dict[str, Any]:
    """Ids can be guessed, because they begin with the time and are consecutive within a millisecond."""
    job = queue.job(task_id)
    try:
        info = await job.ainfo()
    except TaskNotFound:
        raise HTTPException(404) from None
    if info.headers.get("owner") != user:
        raise HTTPException(404)
    return {"status": str(info.status), "result": await job.aresult(0) if info.status is TaskStatus.SUCCESS else None}


@app.get("/health")
async def health() -> dict[str, int]:
    """Whether the store answers, and how much waits: for the probe of a load balancer."""
    counts = await queue.acounts()
    return {name: sum(by_status.values()) for name, by_status in counts.items()}
