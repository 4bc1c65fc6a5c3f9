"""The metrics endpoint of `bullpen worker --metrics-port N`, and how processes share one.

A worker process serves `/metrics`. With `--processes N` each process serves its metrics on a loopback socket that the
supervisor has opened for it, and the supervisor serves all of them, each sample with the label `process`. The samples
are not added up: a process that starts again begins at zero, and a sum over processes would fall then, which
Prometheus reads as a reset of the whole. One process is asked for the metrics of the store, because all see the same.
"""

from __future__ import annotations

import http.client
import http.server
import socket
import socketserver
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from urllib.parse import urlsplit

from bullpen import primitives
from bullpen.errors import MissingExtra
from bullpen.integrations.prometheus import METRICS, BullpenCollector
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.worker.worker_pool import AsyncWorkerPool
from bullpen.telemetry import SafeLogger

try:
    from prometheus_client import REGISTRY, CollectorRegistry
    from prometheus_client.core import Metric
    from prometheus_client.exposition import choose_encoder
    from prometheus_client.parser import text_string_to_metric_families
    from prometheus_client.registry import Collector
except ImportError:
    raise MissingExtra("bullpen.integrations.prometheus_server", "prometheus") from None

ALL, STORE, PROCESS = "/metrics", "/metrics/store", "/metrics/process"  # the last two are for the supervisor
PATIENCE = 3.0  # seconds for a process to answer
IDLE = 10.0  # seconds until a silent connection is closed

Pages = Mapping[str, Collector]  # by path

logger = SafeLogger("bullpen.metrics")


def worker_pages(queue: TaskQueue, worker: AsyncWorkerPool) -> Pages:
    """The pages of a worker process, with the metrics that the app has registered in `prometheus_client.REGISTRY`."""
    of_process = [_AppMetrics(), BullpenCollector(worker)]
    of_store = BullpenCollector(queue)
    return {ALL: _All(*of_process, of_store), PROCESS: _All(*of_process), STORE: of_store}


class _All(Collector):
    """The metrics of several collectors."""

    def __init__(self, *collectors: Collector) -> None:
        self._collectors = collectors

    def collect(self) -> Iterator[Metric]:
        for collector in self._collectors:
            yield from collector.collect()


class _AppMetrics(Collector):
    """What the app has registered. It may be a web app, too, that has registered our metrics for itself."""

    def collect(self) -> Iterator[Metric]:
        return (family for family in REGISTRY.collect() if not family.name.startswith("bullpen_"))


class ProcessMetrics(Collector):
    """The metrics of several processes. `ports` has the loopback port of each, by its name."""

    def __init__(self, ports: Callable[[], Mapping[str, int]]) -> None:
        self._ports = ports

    def collect(self) -> Iterator[Metric]:
        ports = self._ports()
        merged: dict[str, Metric] = {}
        with ThreadPoolExecutor(len(ports) or 1, "bullpen-metrics") as pool:
            pages = dict(zip(ports, pool.map(lambda port: _read(port, PROCESS), ports.values()), strict=True))
        up = Metric("bullpen_worker_process_up", METRICS["bullpen_worker_process_up"].help, "gauge")
        for name, text in pages.items():
            up.add_sample(up.name, {"process": name}, float(text is not None))
            _merge(merged, text, name)
        _merge(merged, _first_of(ports[name] for name, text in pages.items() if text is not None), None)
        yield up
        yield from merged.values()


def _merge(merged: dict[str, Metric], text: str | None, process: str | None) -> None:
    for family in text_string_to_metric_families(text or ""):
        known = merged.setdefault(family.name, Metric(family.name, family.documentation, family.type))
        for sample in family.samples:
            labels = dict(sample.labels)
            if process is not None:
                if "process" in labels:  # a label of the app: renamed as Prometheus does
                    labels["exported_process"] = labels["process"]
                labels["process"] = process
            known.add_sample(sample.name, labels, sample.value)


def _first_of(ports: Iterable[int]) -> str | None:
    """The metrics of the store, from the first process that answers."""
    for port in ports:
        if (text := _read(port, STORE)) is not None:
            return text
    return None


def _read(port: int, path: str) -> str | None:
    """What a process serves; None if it does not answer."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=PATIENCE)
    try:
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.read().decode() if answer.status == http.HTTPStatus.OK else None
    except (OSError, http.client.HTTPException):
        return None
    finally:
        connection.close()


class MetricsServer:
    """Serves pages of metrics on a thread. It reads nothing but the path of a request, and knows no user."""

    def __init__(self, pages: Pages, listening: socket.socket) -> None:
        self._server = _MetricsHTTPServer(pages, listening)
        self.url = self._server.url
        self._thread = primitives.start_thread(lambda: self._server.serve_forever(0.05), "bullpen-metrics")

    def close(self) -> None:
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()


def listen(host: str, port: int) -> socket.socket:
    """Raises OSError if the address cannot be used."""
    family, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    return socket.create_server(address[:2], family=family)


class _MetricsHTTPServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False

    def __init__(self, pages: Pages, listening: socket.socket) -> None:
        super().__init__(listening.getsockname(), _Handler, bind_and_activate=False)
        self.socket.close()
        self.socket = listening
        self.pages = pages
        host, port = listening.getsockname()[:2]
        self.url = f"http://[{host}]:{port}{ALL}" if ":" in host else f"http://{host}:{port}{ALL}"

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that is gone is no error here."""


class _Handler(http.server.BaseHTTPRequestHandler):
    server: _MetricsHTTPServer
    timeout = IDLE

    def do_GET(self) -> None:
        page = self.server.pages.get(urlsplit(self.path).path)
        if page is None:
            self.send_error(404, explain=f"The metrics are at {ALL}.")
            return
        registry = CollectorRegistry(auto_describe=False)
        registry.register(page)
        encode, content_type = choose_encoder(self.headers.get("Accept", ""))
        try:
            body = encode(registry)
        except Exception as error:
            logger.exception("the metrics cannot be served")
            self.send_error(500, explain=type(error).__name__)
            return
        self.send_response(200)
        self.send_header("Content-Type", content_type)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """A scrape is not worth a line."""
