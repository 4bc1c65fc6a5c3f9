"""Requests and workers without a pool."""

from __future__ import annotations

from typing import Any

from bullpen import primitives
from bullpen.errors import QueueTimeout
from bullpen.pools.dispatch.request import DONE, FAILED, Request
from bullpen.pools.dispatch.states import RequestState, WorkerStatus
from bullpen.pools.dispatch.worker import Worker


class WatchedRequest(Request):
    """A request that can be seen to be gone."""

    __slots__ = ("__weakref__",)


def new_request(*args: Any) -> WatchedRequest:
    request = WatchedRequest(primitives.state_lock(), print, args, {})
    request.number = 0
    return request


def request_in(state: RequestState) -> WatchedRequest:
    """A request that came into `state` the usual way."""
    request, error = new_request(), QueueTimeout(seconds=1)
    if state not in (RequestState.QUEUED, RequestState.CANCELLED, RequestState.EXPIRED):
        assert request.start(new_worker())
    match state:
        case RequestState.QUEUED | RequestState.RUNNING:
            moved = True
        case RequestState.CANCELLED:
            moved = request.cancel_queued()
        case RequestState.EXPIRED:
            moved = request.expire(error)
        case RequestState.DONE:
            moved = request.settle(DONE, 1)
        case RequestState.FAILED:
            moved = request.settle(FAILED, error)
        case RequestState.LOST:
            moved = request.lose(error)
        case RequestState.ABANDONED:
            moved = request.abandon(error)
    assert moved
    assert request.state is state
    return request


def new_worker(id: int = 0, status: WorkerStatus = WorkerStatus.STARTING) -> Worker:
    worker = Worker(id, id, f"worker-{id}", 0.0)
    worker.status = status
    return worker
