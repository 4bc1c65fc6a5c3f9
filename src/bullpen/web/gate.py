"""Every request passes here first. It is rejected unless it may go on, and every answer gets the security headers."""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from functools import partial
from http import HTTPStatus
from http.cookies import CookieError, SimpleCookie
from urllib.parse import parse_qsl

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from bullpen.web.access import AccessRules, Visitor
from bullpen.web.tokens import TokenFile

LARGEST_FORM = 16_384  # bytes
LONGEST_TARGET = 4096  # characters of the path and the query
FAILED_LOGINS = (10, 60.0)  # at most so many in so many seconds
API = "/api/"
METHODS = ("GET", "HEAD", "POST")

SECURITY_HEADERS = {
    "content-security-policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
    ),
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    "referrer-policy": "same-origin",  # not no-referrer: browsers would send "Origin: null" with forms
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=()",
}


class Gate:
    """Checks in this order: protocol, size, host, method, origin, visitor, CSRF token. `app` sees only the rest.

    A request to the HTTP API has no session, no user header and no form: only its token counts, and `app` checks the
    scopes of that. `methods_at` names the methods of the path of a request.
    """

    def __init__(
        self,
        app: ASGIApp,
        rules: AccessRules,
        tokens: TokenFile | None = None,
        methods_at: Callable[[Request], str] = lambda _: ", ".join(METHODS),
    ) -> None:
        self._app = app
        self._rules = rules
        self._tokens = tokens
        self._methods_at = methods_at

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await send({"type": "websocket.close", "code": 1008})
            return
        request = Request(scope, receive)
        rejection = await self._check(request)
        if rejection is not None:
            await rejection(scope, receive, _with_headers(send, request))
        else:
            await self._app(scope, receive, _with_headers(send, request))

    async def _check(self, request: Request) -> Response | None:
        """The rejection, or None. The state of a request that goes on has its visitor, its form, and `root`: the path
        where the dashboard is mounted.
        """
        headers, rules = request.headers, self._rules
        request.state.root = request.scope.get("root_path", "")
        path = local_path(request)
        _reject = partial(reject, request)
        if len(request.url.path) + len(request.url.query) > LONGEST_TARGET:
            return _reject(HTTPStatus.REQUEST_URI_TOO_LONG)
        if len(headers.getlist("host")) != 1 or not rules.accepts_host(headers["host"]):
            return _reject(HTTPStatus.MISDIRECTED_REQUEST, "this host name is not known here; see --allowed-host")
        if request.method not in METHODS:
            answer = _reject(HTTPStatus.METHOD_NOT_ALLOWED)
            answer.headers["allow"] = self._methods_at(request)
            return answer
        if path.startswith(API):
            return self._check_api(request)
        changes = request.method == "POST"
        if changes and not rules.accepts_origin(_single(headers)):
            return _reject(HTTPStatus.FORBIDDEN, "the request comes from another page")
        if path == "/events" and headers.get("sec-fetch-site", "same-origin") != "same-origin":
            return _reject(HTTPStatus.FORBIDDEN, "the request comes from another page")  # it could open all streams
        peer = request.client.host if request.client is not None else None
        visitor = rules.visitor(peer, _single(headers), _cookie(headers, rules.cookie), time.time())
        request.state.visitor = visitor
        request.state.form = {}
        if visitor is None and path != "/login" and not path.startswith("/static/"):
            return _ask_to_log_in(request)
        if not changes:
            return None
        form = await read_form(request)
        if form is None:
            return _reject(HTTPStatus.BAD_REQUEST, "the form cannot be read")
        request.state.form = form
        if path == "/login":  # the token in the form is the proof
            return None
        if visitor is None or not visitor.may_operate:
            return _reject(HTTPStatus.FORBIDDEN, "only visitors who have logged in may change something")
        if not rules.accepts_csrf(visitor, form.get("csrf", "")):
            return _reject(HTTPStatus.FORBIDDEN, "the form is not from this session; load the page again")
        return None

    def _check_api(self, request: Request) -> Response | None:
        """The token of the request is its visitor. A browser that another page has led here is rejected."""
        given = _single(request.headers)
        if "origin" in given and not self._rules.accepts_origin(given):
            return reject(request, HTTPStatus.FORBIDDEN, "the request comes from another page")
        if given.get("sec-fetch-site", "same-origin") not in ("same-origin", "none"):
            return reject(request, HTTPStatus.FORBIDDEN, "the request comes from another page")
        scheme, _, text = given.get("authorization", "").partition(" ")
        token = self._tokens.find(text) if self._tokens is not None and scheme.lower() == "bearer" else None
        if token is None:
            why = "the API has no tokens; see --tokens" if self._tokens is None else "give a token of the tokens file"
            return reject(request, HTTPStatus.UNAUTHORIZED, why)
        request.state.visitor = Visitor(f"API token {token.name}")
        request.state.scopes = token.scopes
        return None


def local_path(request: Request) -> str:
    """The path below the place where the dashboard is mounted."""
    path: str = request.scope["path"]
    root: str = request.scope.get("root_path", "")
    return path.removeprefix(root) if root and path.startswith(root) else path


def _single(headers: Headers) -> Mapping[str, str]:
    """Each header once. One that is given several times counts as all of them together, which no check accepts."""
    return {name: ", ".join(headers.getlist(name)) for name in headers}


def _cookie(headers: Headers, name: str) -> str:
    try:
        found = SimpleCookie(headers.get("cookie", "")[:LONGEST_TARGET]).get(name)
    except CookieError:
        return ""
    return "" if found is None else found.value


async def read_form(request: Request) -> dict[str, str] | None:
    """The fields of a small form; None if it is something else, too large, or names a field twice."""
    if content_type(request) != "application/x-www-form-urlencoded":
        return None
    body = await read_bytes(request, LARGEST_FORM)
    if body is None:
        return None
    try:
        fields = parse_qsl(body.decode(), keep_blank_values=True, strict_parsing=bool(body), max_num_fields=20)
    except ValueError:
        return None
    form = dict(fields)
    return form if len(form) == len(fields) else None


def content_type(request: Request) -> str:
    return request.headers.get("content-type", "").partition(";")[0].strip().lower()


async def read_bytes(request: Request, most: int) -> bytes | None:
    """The body; None if it is too large."""
    body = b""
    async for chunk in request.stream():
        body += chunk
        if len(body) > most:
            return None
    return body


def reject(request: Request, status: HTTPStatus, why: str = "") -> Response:
    if local_path(request).startswith(API):
        return problem(status, status.name.lower(), why or status.phrase)
    return PlainTextResponse(f"{status.value} {status.phrase}{': ' if why else ''}{why}\n", status.value)


def problem(status: int, code: str, detail: str) -> Response:
    """The one form of all errors of the API (RFC 9457)."""
    headers = {"www-authenticate": "Bearer"} if status == HTTPStatus.UNAUTHORIZED else {}
    document = {"status": int(status), "code": code, "detail": detail}
    return JSONResponse(document, status, headers, "application/problem+json")


def _ask_to_log_in(request: Request) -> Response:
    if request.method == "GET" and "text/html" in request.headers.get("accept", ""):
        return RedirectResponse(f"{request.state.root}/login", HTTPStatus.SEE_OTHER)
    return reject(request, HTTPStatus.UNAUTHORIZED, "log in first")


def _with_headers(send: Send, request: Request) -> Send:
    async def send_with_headers(message: Message) -> None:
        if message["type"] == "http.response.start":
            headers = MutableHeaders(scope=message)
            for name, value in SECURITY_HEADERS.items():
                headers[name] = value
            if not local_path(request).startswith("/static/"):
                headers["cache-control"] = "no-store"
            if request.url.scheme == "https":
                headers["strict-transport-security"] = "max-age=31536000"
        await send(message)

    return send_with_headers


class LoginLimit:
    """Failed logins of the last time: beyond the limit every login is rejected, whoever asks."""

    def __init__(self) -> None:
        self._failed: deque[float] = deque(maxlen=FAILED_LOGINS[0])

    def is_reached(self, now: float) -> bool:
        return len(self._failed) == FAILED_LOGINS[0] and now - self._failed[0] < FAILED_LOGINS[1]

    def failed(self, now: float) -> None:
        self._failed.append(now)
