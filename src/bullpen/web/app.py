"""The ASGI app: the gate, and behind it the pages, the actions, the login, the event stream and the HTTP API."""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from http import HTTPStatus
from pathlib import Path
from urllib.parse import unquote, urlsplit

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response, StreamingResponse
from starlette.routing import BaseRoute, Match, Mount, Route
from starlette.staticfiles import StaticFiles
from starlette.types import ASGIApp

from bullpen.cli.reads import StoreReads
from bullpen.errors import (
    BullpenError,
    InvalidArgument,
    InvalidEvent,
    InvalidOption,
    InvalidOptionType,
    InvalidPayload,
    PayloadTooLarge,
    ScheduleNotFound,
    StorageError,
    TaskNotFound,
    UnknownTask,
)
from bullpen.pools.async_pool import AsyncPool
from bullpen.pools.pool import Pool
from bullpen.pools.pools import Pools
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.web.access import LOOPBACK_NAMES, SESSION_SECONDS, AccessRules, Visitor
from bullpen.web.actions import ACTIONS, ActionRequest
from bullpen.web.api import OPERATIONS, ApiCall, Operation, encode, error_code, read_body, read_parameters
from bullpen.web.audit import AuditLog
from bullpen.web.bulk import BulkRuns
from bullpen.web.events import EventStreams
from bullpen.web.gate import API, Gate, LoginLimit, content_type, local_path, problem, read_bytes
from bullpen.web.graph import ChildrenReads
from bullpen.web.openapi import BASE, openapi_document
from bullpen.web.parameters import WrongParameter, read_query, required
from bullpen.web.rendering import Renderer
from bullpen.web.tokens import TokenFile
from bullpen.web.views import VIEWS, View, Visit, find_view

STATIC = Path(__file__).with_name("static")
LARGEST_BODY = 1 << 20
MOST_WAITING = 100  # requests of the API that wait for tasks


def dashboard(
    queue: TaskQueue,
    *,
    token: str | None = None,
    hosts: Iterable[str] = LOOPBACK_NAMES,
    trusted_proxies: Iterable[str] = (),
    trusted_socket: bool = False,
    user_header: str = "X-Forwarded-User",
    anonymous: bool = False,
    read_only: bool = False,
    login_code: str | None = None,
    tokens: str | os.PathLike[str] | None = None,
    audit_file: str | os.PathLike[str] | None = None,
    pools: Iterable[Pool | AsyncPool | Pools] = (),
) -> ASGIApp:
    """The dashboard of the store of `queue`, as an ASGI app. It serves nobody unless one of these lets them in:

    - `token`: a secret of at least 20 characters that people enter once. `login_code` opens one session without it.
    - `trusted_proxies`: addresses whose header `user_header` names the user. The proxy has to set or remove it.
      `trusted_socket`: so does a proxy that comes through the server's Unix socket.
    - `anonymous`: visitors from this very machine may look; they change nothing and see no arguments and no results.
    - `tokens`: a file with tokens for programs, which use the HTTP API; see `bullpen tokens`.

    `hosts` are the names under which browsers reach it, without ports. `read_only`: nobody changes anything.
    `audit_file`: a file that keeps the latest changes, for the system page. `pools`: those of this program, which the
    page of workers shows.
    """
    shown = tuple(pools) if isinstance(pools, Iterable) and not isinstance(pools, Pools) else (pools,)
    if not all(isinstance(one, Pool | AsyncPool | Pools) for one in shown):
        raise InvalidOptionType("pools", pools, "pools: Pool, AsyncPool or Pools")
    if not isinstance(queue, TaskQueue):
        raise InvalidOptionType("queue", queue, "a TaskQueue")
    rules = AccessRules.read(
        token=token,
        hosts=hosts,
        trusted_proxies=trusted_proxies,
        user_header=user_header,
        anonymous=anonymous,
        read_only=read_only,
        trusted_socket=trusted_socket,
        secret=secrets.token_hex(32),
    )
    if token is None and not (rules.proxies or trusted_socket or anonymous or tokens is not None):
        raise InvalidOption("token", None, "given, unless trusted_proxies, anonymous or tokens lets somebody in")
    inner = Dashboard(queue, rules, login_code, AuditLog(audit_file), shown)
    return Gate(inner.app, rules, None if tokens is None else TokenFile(tokens), inner.methods_at)


class Dashboard:
    """The app behind the gate."""

    def __init__(
        self,
        queue: TaskQueue,
        rules: AccessRules,
        login_code: str | None,
        audit: AuditLog | None = None,
        pools: Sequence[Pool | AsyncPool | Pools] = (),
    ) -> None:
        self._queue = queue
        self._pools = pools
        self._rules = rules
        self._login_code = login_code
        self._login_limit = LoginLimit()
        self._audit = audit or AuditLog()
        self._reads = StoreReads(queue)
        self._bulk = BulkRuns(queue, self._reads.forget)
        self._children = ChildrenReads()
        self._renderer = Renderer(rules)
        self._streams = EventStreams()
        self._waiting = 0
        self.app = Starlette(
            routes=self._routes(),
            lifespan=self._lifespan,
            exception_handlers={
                BullpenError: self._explain,
                WrongParameter: self._explain,
                HTTPException: self._explain,
            },
        )

    def _routes(self) -> list[BaseRoute]:
        return [
            Route("/login", self._log_in, methods=["GET", "POST"]),
            Route("/logout", self._log_out, methods=["POST"]),
            Route("/events", self._events, methods=["GET"]),
            Mount("/static", StaticFiles(directory=STATIC)),
            Route(f"{BASE}/openapi.json", self._openapi, methods=["GET"]),
            *(Route(BASE + one.path, self._operation(one), methods=[one.method]) for one in OPERATIONS),
            *(Route(path, self._action(path), methods=["POST"]) for path in ACTIONS),
            *(Route(view.path, self._page(view), methods=["GET"]) for view in VIEWS),
        ]

    @asynccontextmanager
    async def _lifespan(self, _: Starlette) -> AsyncIterator[None]:
        yield
        await self._bulk.close()
        await self._reads.close()

    # Pages.

    def _page(self, view: View) -> Callable[[Request], Awaitable[Response]]:
        async def show(request: Request) -> Response:
            visit = self._visit(request, request.url.query, request.path_params.get("id", ""))
            values = await view.read(visit)
            return self._renderer.page(request, view.name, values)

        return show

    def _visit(self, request: Request, query: str, task_id: str) -> Visit:
        return Visit(
            queue=self._queue,
            reads=self._reads,
            bulk=self._bulk,
            children=self._children,
            pools=self._pools,
            audit=self._audit,
            visitor=request.state.visitor,
            parameters=read_query(query),
            id=task_id,
        )

    async def _events(self, request: Request) -> Response:
        """The live part of the page that the parameter `view` names by its path and query."""
        wanted = urlsplit(required(read_query(request.url.query), "view"))
        found = find_view(unquote(wanted.path))
        if found is None or wanted.scheme or wanted.netloc:
            raise WrongParameter("view must be the path of a page")
        if self._streams.is_full:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "too many pages are open")
        view, task_id = found
        visit = self._visit(request, wanted.query, task_id)

        async def render() -> str:
            return self._renderer.live_part(request, view, await view.read(visit))

        headers = {"x-accel-buffering": "no"}  # nginx would wait for more
        return StreamingResponse(self._streams.stream(render), media_type="text/event-stream", headers=headers)

    # Actions.

    def _action(self, path: str) -> Callable[[Request], Awaitable[Response]]:
        async def act(request: Request) -> Response:
            visitor: Visitor = request.state.visitor
            done = await ACTIONS[path](ActionRequest(self._queue, self._bulk, visitor.name, request.state.form))
            self._reads.forget()
            self._note(visitor, request, done.message)
            return _go_to(request, done.page)

        return act

    # The HTTP API.

    async def _openapi(self, request: Request) -> Response:
        return JSONResponse(openapi_document(request.state.root))

    def _operation(self, operation: Operation) -> Callable[[Request], Awaitable[Response]]:
        async def run(request: Request) -> Response:
            self._check_scope(operation, request.state.scopes)
            query = read_parameters(request.url.query, operation.query)
            body = None if operation.body is None else read_body(await _json_of(request), operation.body)
            item = request.path_params.get("id", "")
            call = ApiCall(self._queue, self._reads, request.state.scopes, item, query, body)
            with self._one_more_waiting(bool(getattr(query, "wait", 0))):
                answer = await operation.run(call)
            if answer.done:
                self._reads.forget()
                self._note(request.state.visitor, request, answer.done)
            headers = {"location": f"{request.state.root}{BASE}{answer.location}"} if answer.location else {}
            return Response(encode(answer.document), answer.status, headers, "application/json")

        return run

    def _check_scope(self, operation: Operation, scopes: tuple[str, ...]) -> None:
        if not set(operation.scopes) & set(scopes):
            needed = " or ".join(operation.scopes)
            raise HTTPException(HTTPStatus.FORBIDDEN, f"this needs a token with the scope {needed}")
        if operation.changes and self._rules.read_only:
            raise HTTPException(HTTPStatus.FORBIDDEN, "this dashboard is read-only")

    @contextmanager
    def _one_more_waiting(self, waits: bool) -> Iterator[None]:
        if waits and self._waiting >= MOST_WAITING:
            raise HTTPException(HTTPStatus.SERVICE_UNAVAILABLE, "too many callers wait for tasks; ask without wait")
        self._waiting += waits
        try:
            yield
        finally:
            self._waiting -= waits

    def _note(self, visitor: Visitor | None, request: Request, what: str) -> None:
        """What was changed, by which visitor and from where."""
        peer = request.client.host if request.client is not None else "an unknown address"
        self._audit.add("a visitor" if visitor is None else visitor.name, peer, what)

    # Sessions.

    async def _log_in(self, request: Request) -> Response:
        if self._rules.token is None:
            raise HTTPException(HTTPStatus.NOT_FOUND, "this dashboard has no token; users come through a proxy")
        if request.method == "GET" and (code := read_query(request.url.query).get("code", "")):
            if self._login_code is not None and secrets.compare_digest(code.encode(), self._login_code.encode()):
                self._login_code = None
                return self._begin_session(request)
            return self._renderer.page(request, "login", {"problem": "This link was used already."}, 403)
        if request.method != "POST":
            return self._renderer.page(request, "login", {"problem": ""})
        now = time.monotonic()
        if self._login_limit.is_reached(now):
            return self._renderer.page(request, "login", {"problem": "Too many wrong tokens. Wait a minute."}, 429)
        if not self._rules.accepts_token(request.state.form.get("token", "")):
            self._login_limit.failed(now)
            self._note(None, request, "gave a wrong token")
            return self._renderer.page(request, "login", {"problem": "This is not the token."}, 403)
        return self._begin_session(request)

    def _begin_session(self, request: Request) -> Response:
        self._note(None, request, "logged in with the token")
        response = _go_to(request, "/")
        response.set_cookie(
            self._rules.cookie,
            self._rules.new_session(secrets.token_urlsafe(16), time.time()),
            max_age=SESSION_SECONDS,
            path=request.state.root or "/",
            secure=request.url.scheme == "https",
            httponly=True,
            samesite="strict",
        )
        return response

    async def _log_out(self, request: Request) -> Response:
        self._note(request.state.visitor, request, "logged out")
        response = _go_to(request, "/login")
        response.delete_cookie(self._rules.cookie, path=request.state.root or "/")
        return response

    # Errors.

    async def _explain(self, request: Request, error: Exception) -> Response:
        status = _status_of(error)
        message = error.detail if isinstance(error, HTTPException) else str(error)
        if local_path(request).startswith(API):
            is_http = isinstance(error, HTTPException)
            answer = problem(status, HTTPStatus(status).name.lower() if is_http else error_code(error), message)
        else:
            answer = self._renderer.page(request, "problem", {"message": message, "status": status}, status)
        if status == HTTPStatus.METHOD_NOT_ALLOWED:
            answer.headers["allow"] = self.methods_at(request)
        return answer

    def methods_at(self, request: Request) -> str:
        """The methods of a path; an id may have slashes, so of its most special pattern."""
        routes = [
            one for one in self.app.routes if isinstance(one, Route) and one.matches(request.scope)[0] != Match.NONE
        ]
        pattern = max((one.path for one in routes), key=lambda path: (-path.count("{"), len(path)), default="")
        return ", ".join(sorted({method for one in routes if one.path == pattern for method in one.methods or ()}))


def _go_to(request: Request, page: str) -> RedirectResponse:
    return RedirectResponse(f"{request.state.root}{page}", HTTPStatus.SEE_OTHER)


async def _json_of(request: Request) -> bytes:
    body = await read_bytes(request, LARGEST_BODY)
    if body is None:
        raise HTTPException(HTTPStatus.REQUEST_ENTITY_TOO_LARGE, f"the body must have at most {LARGEST_BODY} bytes")
    if body and content_type(request) != "application/json":
        raise HTTPException(HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "the body must be application/json")
    return body


def _status_of(error: Exception) -> int:
    match error:
        case HTTPException():
            return error.status_code
        case TaskNotFound() | ScheduleNotFound() | UnknownTask():
            return HTTPStatus.NOT_FOUND
        case PayloadTooLarge():
            return HTTPStatus.REQUEST_ENTITY_TOO_LARGE
        case WrongParameter() | InvalidOption() | InvalidArgument() | InvalidPayload() | InvalidEvent():
            return HTTPStatus.BAD_REQUEST
        case StorageError():
            return HTTPStatus.SERVICE_UNAVAILABLE
    return HTTPStatus.CONFLICT
