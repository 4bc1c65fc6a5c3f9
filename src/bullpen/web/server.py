"""Serves the dashboard of a store, for `bullpen dashboard`."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import ipaddress
import logging
import os
import secrets
import signal
import socket
import sys
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bullpen.errors import ConfigurationError, MissingExtra
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.web import dashboard
from bullpen.web.access import LOOPBACK_NAMES, is_loopback
from bullpen.web.openapi import BASE
from bullpen.web.tokens import TokenFile

try:
    import uvicorn
except ModuleNotFoundError as error:
    raise MissingExtra("bullpen dashboard", extra="web") from error

LARGEST_TOKEN_FILE = 4096
GRACE = 1  # seconds for answers that are under way; an event stream has no end of its own
MOST_CONNECTIONS = 200


@dataclass(frozen=True, slots=True)
class ServerOptions:
    """How `bullpen dashboard` serves."""

    host: str
    port: int
    token_file: str | None
    allowed_hosts: Sequence[str]
    trusted_proxies: Sequence[str]
    user_header: str
    require_login: bool
    read_only: bool
    tokens: str | None = None
    audit_file: str | None = None
    unix_socket: str | None = None

    @property
    def is_local(self) -> bool:
        return self.unix_socket is not None or self.host == "localhost" or is_loopback(self.host)

    @property
    def has_proxy(self) -> bool:
        return bool(self.trusted_proxies) or self.unix_socket is not None


def run(queue: TaskQueue, options: ServerOptions, announce: Callable[[Mapping[str, str]], None]) -> None:
    """Serve until SIGINT or SIGTERM. Raises ConfigurationError for an address that others reach without a login.
    `announce` is called with the address, the token and other facts when it listens.
    """
    token = None if options.token_file is None else read_token(Path(options.token_file))
    if options.tokens is not None:
        TokenFile(options.tokens).read()  # raises if no token would be accepted
    if not options.is_local and token is None and not options.trusted_proxies:
        raise ConfigurationError(
            f"{options.host} can be reached from other machines: give a token with --token-file, or a proxy that logs "
            "users in with --trusted-proxy",
            source="--host",
        )
    printed = token is None and not options.has_proxy
    token = token or (secrets.token_urlsafe(24) if printed else None)
    code = secrets.token_urlsafe(24) if token is not None else None
    app = dashboard(
        queue,
        token=token,
        hosts=[*LOOPBACK_NAMES, *_own_name(options.host), *options.allowed_hosts],
        trusted_proxies=options.trusted_proxies,
        trusted_socket=options.unix_socket is not None,
        user_header=options.user_header,
        anonymous=options.is_local and not options.require_login and not options.has_proxy,
        read_only=options.read_only,
        login_code=code,
        tokens=options.tokens,
        audit_file=options.audit_file,
    )
    config = uvicorn.Config(
        app,
        log_config=None,
        log_level="warning",
        access_log=False,
        server_header=False,
        proxy_headers=False,  # the rules decide which proxy is trusted
        ws="none",
        limit_concurrency=MOST_CONNECTIONS,
        timeout_graceful_shutdown=GRACE,
    )
    _log_to_stderr()
    path = None if options.unix_socket is None else Path(options.unix_socket)
    server = _Server(config)
    opened = _listen(options.host, options.port) if path is None else _listen_at(path)
    with opened as listener, server.ended_by_signals():
        port = listener.getsockname()[1] if path is None else 0
        announce(_facts(options, port, token if printed else None, code))
        try:
            asyncio.run(_serve(server, listener, queue))
        finally:
            if path is not None:
                path.unlink(missing_ok=True)


def read_token(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(LARGEST_TOKEN_FILE).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigurationError(f"the token cannot be read ({error})", source=f"--token-file {path}") from None


def _own_name(host: str) -> list[str]:
    """The address that it listens on, as browsers write it; none if it listens on all addresses."""
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        return [host]
    if address.is_unspecified:
        return []
    return [f"[{address}]" if address.version == 6 else str(address)]


def _listen(host: str, port: int) -> socket.socket:
    try:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family)
    except OSError as error:
        reason = "another program uses it" if error.errno == errno.EADDRINUSE else error.strerror or error
        message = f"cannot listen on {host} port {port} ({reason}); choose another with --port"
        raise ConfigurationError(message, source="--port") from None


def _listen_at(path: Path) -> socket.socket:
    """At a Unix socket. Its group may connect, so that a proxy of that group reaches it, and no other user."""
    listener = socket.socket(socket.AF_UNIX)
    try:
        if path.is_socket():
            with socket.socket(socket.AF_UNIX) as other, contextlib.suppress(ConnectionRefusedError):
                other.connect(str(path))
                raise OSError("another process listens there")
            path.unlink()  # of a process that was killed
        before = os.umask(0o117)
        try:
            listener.bind(str(path))
        finally:
            os.umask(before)
        listener.listen(MOST_CONNECTIONS)
    except OSError as error:
        listener.close()
        raise ConfigurationError(f"cannot listen at {path} ({error.strerror or error})", source="--socket") from None
    return listener


async def _serve(server: uvicorn.Server, listener: socket.socket, queue: TaskQueue) -> None:
    try:
        await server.serve(sockets=[listener])
    finally:
        await queue.aclose()


class _Server(uvicorn.Server):  # type: ignore[misc]
    """Ends without an error after a signal, also one that comes before it serves; uvicorn would raise it again."""

    def capture_signals(self) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()  # `ended_by_signals` handles them

    @contextlib.contextmanager
    def ended_by_signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self.handle_exit) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)


def _log_to_stderr() -> None:
    """The audit log and the errors of the server."""
    logging.basicConfig(stream=sys.stderr, level=logging.WARNING, format="%(asctime)s %(levelname)s %(message)s")
    logging.getLogger("bullpen.web").setLevel(logging.INFO)


def _facts(options: ServerOptions, port: int, token: str | None, code: str | None) -> dict[str, str]:
    if options.unix_socket is not None:
        facts = {"address": f"the Unix socket {options.unix_socket}, for a proxy that names users"}
        return facts | {"stop": "Ctrl-C or SIGTERM"}
    shown = "127.0.0.1" if options.is_local else options.host
    base = f"http://{f'[{shown}]' if ':' in shown else shown}:{port}"
    facts = {"address": base}
    if code is not None and options.is_local:
        facts["log in"] = f"{base}/login?code={code} (works once)"
    if token is not None:
        facts["token"] = token
    if options.tokens is not None:
        facts["API"] = f"{base}{BASE}, with the tokens of {options.tokens}"
    if not options.is_local:
        facts["warning"] = "this is HTTP without TLS: put a proxy with TLS before it"
    return facts | {"stop": "Ctrl-C or SIGTERM"}
