"""`bullpen worker --metrics-port N`: serves Prometheus metrics while the worker runs."""

from __future__ import annotations

import logging
import socket
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager

from bullpen.cli.command import CommandError
from bullpen.integrations.prometheus_server import ALL, MetricsServer, Pages, ProcessMetrics, listen, worker_pages
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool

logger = logging.getLogger("bullpen.worker")


@contextmanager
def served(
    queue: TaskQueue, pool: AsyncWorkerPool, host: str, port: int, listening: socket.socket | None
) -> Iterator[None]:
    """The metrics of this process. `listening`: the socket on which its supervisor asks for them."""
    with _serving(worker_pages(queue, pool), listening or _listen(host, port), announced=listening is None):
        yield


@contextmanager
def served_for_processes(ports: Callable[[], Mapping[str, int]], host: str, port: int) -> Iterator[None]:
    """The metrics of all processes of this supervisor."""
    with _serving({ALL: ProcessMetrics(ports)}, _listen(host, port), announced=True):
        yield


@contextmanager
def _serving(pages: Pages, listening: socket.socket, *, announced: bool) -> Iterator[None]:
    server = MetricsServer(pages, listening)
    if announced:
        logger.info("metrics: %s", server.url)
    try:
        yield
    finally:
        server.close()


def _listen(host: str, port: int) -> socket.socket:
    try:
        return listen(host, port)
    except OSError as error:
        raise CommandError(f"--metrics-port {port}: cannot listen on {host}: {error.strerror or error}") from None
