"""The web side of the app: `POST /mails/ADDRESS` enqueues a task. It runs as `gunicorn web:application`."""

from __future__ import annotations

from collections.abc import Iterable
from wsgiref.types import StartResponse, WSGIEnvironment

from app import send_email


def application(environ: WSGIEnvironment, start_response: StartResponse) -> Iterable[bytes]:
    method, path = environ["REQUEST_METHOD"], environ["PATH_INFO"]
    if path == "/health":
        status, body = "200 OK", "well"
    elif method == "POST" and path.startswith("/mails/"):
        status, body = "202 Accepted", send_email.enqueue(path.removeprefix("/mails/")).id
    else:
        status, body = "404 Not Found", "POST /mails/ADDRESS"
    start_response(status, [("Content-Type", "text/plain; charset=utf-8")])
    return [body.encode()]
