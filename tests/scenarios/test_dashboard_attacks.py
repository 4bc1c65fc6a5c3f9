"""Attacks on the dashboard: every route and method without the right to use it, and hostile text in every field."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

import httpx
import msgspec
import pytest
from starlette.routing import Mount, Route

from bullpen import AsyncWorkerPool, TaskQueue, current_task
from bullpen.web.access import AccessRules
from bullpen.web.api import OPERATIONS
from bullpen.web.app import Dashboard
from bullpen.web.gate import SECURITY_HEADERS
from tests.scenarios.test_dashboard import PAGES, Elements
from tests.scenarios.web_support import (
    HOST,
    ORIGIN,
    TOKEN,
    Browser,
    add_worker,
    fill,
    make_tokens,
    site,
    wait_for_approval,
)

METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "CONNECT", "QUERY", "BREW")
OPEN = ("/login", "/static/style.css")  # without a visitor
FORM = {"content-type": "application/x-www-form-urlencoded"}

WRONG_HOSTS = (
    *("evil.example", "evil.example:8787", "127.0.0.1.nip.io:8787", "localhost.evil.example", "0.0.0.0:8787"),
    *("10.0.0.1:8787", "[::2]:8787", "127.0.0.1:8787@evil.example", "localhost#evil.example", "127.0.0.1:x", ""),
)
WRONG_ORIGINS = (
    *("", "null", "http://evil.example", "http://127.0.0.1", "http://127.0.0.1:8788", "http://localhost:8787"),
    *("http://127.0.0.1:8787.evil.example", "ftp://127.0.0.1:8787", "127.0.0.1:8787", "http://evil.example/127.0.0.1"),
)
FORGED: tuple[dict[str, str], ...] = (
    {},
    {"x-forwarded-user": "admin"},
    {"x-forwarded-user": "admin", "x-forwarded-for": "127.0.0.1"},
    {"x-forwarded-host": HOST, "x-forwarded-for": "127.0.0.1", "forwarded": "for=127.0.0.1"},
    {"authorization": f"Bearer {TOKEN}"},
    {"authorization": "Basic YWRtaW46YWRtaW4="},
    {"cookie": "bullpen_session=admin; session=1"},
    {"x-http-method-override": "POST"},
    {"x-csrf-token": "0" * 64, "x-requested-with": "XMLHttpRequest"},
)


class Attack(NamedTuple):
    """A request that must be rejected, and how."""

    method: str
    path: str
    headers: dict[str, str]
    body: str
    rejections: tuple[int, ...]


def paths_of(queue: TaskQueue, task: str) -> list[str]:
    """A path of every route that exists, so that a new route is attacked too."""
    terms: dict[str, Any] = {"trusted_proxies": (), "user_header": "x", "anonymous": False, "read_only": False}
    rules = AccessRules.read(token=TOKEN, hosts=["localhost"], secret="s", **terms)
    found = []
    for route in Dashboard(queue, rules, None).app.routes:
        assert isinstance(route, Route | Mount), f"this test does not know {route}"
        found.append("/static/style.css" if isinstance(route, Mount) else route.path.replace("{id:path}", task))
    return [*found, "/events?view=/", "/nothing", "/static/%2e%2e/app.py", "/login/../queues", "/LOGIN", "/login/"]


def body_of(task: str, **more: str) -> str:
    return str(
        httpx.QueryParams(
            {"queue": "default", "key": "shop.nightly", "task": task, "verb": "delete", "event": "approved", **more}
        )
    )


def of_strangers(paths: list[str], task: str) -> Iterator[Attack]:
    """Visitors without a session, where they may not look."""
    for method, path, forged in itertools.product(METHODS, paths, FORGED):
        if path not in OPEN:
            headers = {"host": HOST, "origin": ORIGIN, **FORM, **forged}
            rejections = (403, 404, 405) if path.startswith("/static/") else (401, 405)
            yield Attack(method, path, headers, body_of(task), rejections)


def under_other_names(paths: list[str], task: str, session: dict[str, str], csrf: str) -> Iterator[Attack]:
    """A browser with a session that another page has led here under a name of its own (DNS rebinding)."""
    for method, path, host in itertools.product(METHODS, paths, WRONG_HOSTS):
        headers = {"host": host, "origin": f"http://{host}", **FORM, **session}
        yield Attack(method, path, headers, body_of(task, csrf=csrf), (421,))


def from_other_pages(
    paths: list[str], task: str, session: dict[str, str], csrf: str, of_another: str
) -> Iterator[Attack]:
    """A browser with a session, and a form of another page."""
    right = {"host": HOST, "origin": ORIGIN, **FORM, **session}
    for path, origin in itertools.product(paths, WRONG_ORIGINS):
        yield Attack("POST", path, {**right, "origin": origin}, body_of(task, csrf=csrf), (403,))
    for path in paths:
        without = {name: value for name, value in right.items() if name != "origin"}
        if path.startswith("/api/"):
            yield Attack("POST", path, right, body_of(task, csrf=csrf), (401,))  # a session is no token
            continue
        yield Attack("POST", path, without, body_of(task, csrf=csrf), (403,))
        for sent in ("cross-site", "same-site", "none"):
            yield Attack("POST", path, {**right, "sec-fetch-site": sent}, body_of(task, csrf=csrf), (403,))
        if path == "/login":
            continue
        for wrong in ("", "0" * 64, csrf[:-1], csrf.upper(), of_another, "ä", f" {csrf}"):
            yield Attack("POST", path, right, body_of(task, csrf=wrong), (403,))
        yield Attack("POST", path, right, body_of(task), (403,))
        yield Attack("POST", path, right, body_of(task, csrf=csrf) + f"&csrf={csrf}", (400,))
        yield Attack("POST", path, right, body_of(task, csrf=csrf) + "&x=" + "x" * 20_000, (400,))
        yield Attack("POST", path, right, body_of(task, csrf=csrf) + "&a=1" * 50, (400,))
        for kind in ("application/json", "multipart/form-data; boundary=x", "text/plain", ""):
            yield Attack("POST", path, {**right, "content-type": kind}, body_of(task, csrf=csrf), (400,))
    for method, path in itertools.product(set(METHODS) - {"GET", "HEAD", "POST"}, paths):
        yield Attack(method, path, right, body_of(task, csrf=csrf), (405,))


def of_programs(paths: list[str], task: str, tokens: dict[str, dict[str, str]]) -> Iterator[Attack]:
    """Programs with a token on what it does not open: other scopes, pages, other names, and pages of others."""
    call = json.dumps({"function": "shop.send", "args": ["x@"]})
    event = json.dumps({"name": "approved"})
    typed = {"content-type": "application/json"}
    for (scope, token), method, path in itertools.product(tokens.items(), METHODS, paths):
        body = event if path.endswith("/events") else call
        if not path.startswith("/api/"):
            if path not in OPEN:
                rejections = (400, 403, 404, 405) if path.startswith("/static/") else (401, 403, 405)
                yield Attack(method, path, {**token, **typed, "origin": ORIGIN}, body, rejections)
            continue
        for host in WRONG_HOSTS:
            yield Attack(method, path, {**token, **typed, "host": host}, body, (421,))
        for origin in WRONG_ORIGINS:
            yield Attack(method, path, {**token, **typed, "origin": origin}, body, (403, 405))
        for sent in ("cross-site", "same-site"):
            yield Attack(method, path, {**token, **typed, "sec-fetch-site": sent}, body, (403, 405))
        given = token["authorization"]
        wrong = (given[:-1], given + "x", given.lower(), given.replace("Bearer", "Basic"), f"{given}, {given}")
        for authorization in (*wrong, "Bearer", "Bearer ", f"Bearer {'0' * 64}"):
            yield Attack(method, path, {**token, **typed, "authorization": authorization}, body, (401, 405))
        if not may(scope, method, path, task):
            yield Attack(method, path, {**token, **typed}, body, (403, 404, 405))


def may(scope: str, method: str, path: str, task: str) -> bool:
    """Whether a token with this scope may do this."""
    if path.endswith("/openapi.json"):
        return method in ("GET", "HEAD")
    for operation in OPERATIONS:
        of_path = f"/api/v1{operation.path.replace('{id:path}', task)}" == path
        of_method = method == operation.method or (method, operation.method) == ("HEAD", "GET")
        if of_path and of_method:
            return scope in operation.scopes
    return method in ("GET", "HEAD") and path.startswith("/api/v1/tasks/")  # the id of a task may have slashes


async def rejected(browser: Browser, attacks: Iterator[Attack]) -> int:
    """How many attacks there were; each of them was rejected, with all security headers."""
    many = 0
    for attack in attacks:
        request = browser.build_request(
            attack.method, attack.path, headers=attack.headers, content=attack.body.encode()
        )
        answer = await browser.send(request)
        assert answer.status_code in attack.rejections, (attack, answer.text[:300])
        assert {name: answer.headers.get(name) for name in SECURITY_HEADERS} == SECURITY_HEADERS, attack
        assert not answer.headers.get("set-cookie"), attack
        many += 1
    return many


async def state_of(queue: TaskQueue, task: str) -> Any:
    schedule = await queue.schedules.aget("shop.nightly")
    tasks = [msgspec.structs.replace(one, progress=None) for one in await queue.alist(limit=100)]
    events = await (await queue.astorage()).events(limit=10)
    return await queue.apaused(), tasks, schedule.paused, (await queue.aget(task)).status, [one.name for one in events]


@pytest.mark.anyio
async def test_no_attack_gets_through_on_any_route_and_method(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path)
    options: dict[str, Any] = {"anonymous": False, "tokens": tmp_path / "tokens"}
    async with site(tmp_path, **options) as (queue, app), Browser(app) as browser, Browser(app) as other:
        _, task = await fill(queue)
        paths = paths_of(queue, task)
        before = await state_of(queue, task)
        many = await rejected(browser, of_strangers(paths, task))
        many += await rejected(browser, of_programs(paths, task, tokens))
        await browser.log_in()
        await other.log_in()
        csrf, of_another = await browser.csrf(), await other.csrf()
        session = {"cookie": "; ".join(f"{name}={value}" for name, value in browser.cookies.items())}
        assert session["cookie"]
        many += await rejected(browser, under_other_names(paths, task, session, csrf))
        many += await rejected(browser, from_other_pages(paths, task, session, csrf, of_another))
        assert many >= 5000, many
        assert await state_of(queue, task) == before
        for path, field, value in (
            ("/queues/pause", "queue", "default"),
            ("/limits/set", "queue", "reports"),
            ("/schedules/pause", "key", "shop.nightly"),
            ("/task/retry", "task", task),
            ("/waits/emit", "event", "approved"),
            ("/bulk/start", "verb", "delete"),
        ):  # with everything right, the same requests do change the store
            assert (await browser.act(path, **{field: value})).status_code == 303
        after = await state_of(queue, task)
        assert (after[0], *after[2:]) == ({"mail", "default"}, True, "pending", ["approved"])


@pytest.mark.anyio
async def test_an_anonymous_visitor_changes_nothing_and_is_none_behind_a_proxy(tmp_path: Path) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser, Browser(app, peer="10.0.0.7") as remote:
        _, task = await fill(queue)
        paths, before = paths_of(queue, task), await state_of(queue, task)
        right = {"host": HOST, "origin": ORIGIN, **FORM}
        posts = (
            Attack("POST", path, right | forged, body_of(task, csrf=csrf), (401, 403))
            for path, forged, csrf in itertools.product(paths, FORGED, ("", "0" * 64))
            if path != "/login"
        )
        assert await rejected(browser, posts) > 200
        assert await rejected(remote, of_strangers(paths, task)) > 1000
        for header in ("x-forwarded-for", "forwarded", "x-real-ip"):
            assert (await browser.get("/", headers={header: "198.51.100.7"})).status_code == 401
        assert await state_of(queue, task) == before
        assert (await browser.get("/")).status_code == 200


@pytest.mark.anyio
async def test_users_of_a_trusted_proxy_operate_with_their_own_csrf_token(tmp_path: Path) -> None:
    options: dict[str, Any] = {"token": None, "anonymous": False, "trusted_proxies": ["10.0.0.7"]}
    async with site(tmp_path, **options, hosts=["ops.example.org"]) as (queue, app):
        await fill(queue)
        ada, eve = {"x-forwarded-user": "ada"}, {"x-forwarded-user": "eve"}
        proxy = Browser(app, peer="10.0.0.7", host="ops.example.org")
        async with proxy, Browser(app, peer="10.0.0.8", host="ops.example.org", headers=ada) as stranger:
            assert (await stranger.get("/")).status_code == 401
            assert (await proxy.get("/")).status_code == 401  # the proxy names no user
            page = await proxy.get("/queues", headers=ada)
            csrf = page.text.partition('name="csrf" value="')[2][:64]
            origin = {"origin": "https://ops.example.org"}  # the proxy ends TLS
            body = {"csrf": csrf, "queue": "default"}
            assert (await proxy.post("/queues/pause", data=body, headers=eve | origin)).status_code == 403
            assert (await proxy.post("/queues/pause", data=body, headers=ada | origin)).status_code == 303
            assert "default" in await queue.apaused()
            assert (await proxy.get("/login", headers=ada)).status_code == 404


# Hostile text.

FILTERS = ("function", "worker", "error", "fingerprint")

HOSTILE = (
    "<x-evil>",
    "<script>alert(1)</script>",
    '"><x-evil/onload=alert(1)>',
    "'><img/src=x/onerror=alert(1)>",
    '"/onmouseover="alert(1)"/x="',
    "</code></pre></td></table><x-evil>",
    "javascript:alert(1)",
    "{{1331*1337}}{%raw%}${1331*1337}<%=1331*1337%>",
    "</script><x-evil>",
    "<!--<x-evil>-->",
    "&lt;x-evil&gt;&#60;x-evil&#62;",
    "\u202e<x-evil>\u2066",
    "`<x-evil>`",
    "../../../etc/passwd",
    "%3Cx-evil%3E%22%3E",
    "?a=1&b=<x-evil>#<x-evil>",
)
# 284 more, for --thorough: ways to begin an element or an attribute, and what it would do.
OPENINGS = (
    "",
    '"',
    "'",
    "`",
    ">",
    '">',
    "'>",
    "-->",
    "]]>",
    "</title>",
    "</textarea>",
    "</style>",
    "\\",
    "%00",
    "&quot;>",
)
ELEMENTS = (
    *("<x-evil>", "<svg/onload=alert(1)>", "<img/src=x/onerror=alert(1)>", "<iframe/srcdoc='<x-evil>'>"),
    *("<a/href=javascript:alert(1)>x</a>", "<x-evil/style=color:red>", "<details/open/ontoggle=alert(1)>"),
    *(
        "<math><mtext></mtext><x-evil>",
        "<base/href=//evil.example>",
        "<meta/http-equiv=refresh>",
        "<form/action=//evil>",
    ),
    *("/onfocus=alert(1)/autofocus/x=", "{{config}}{%print(1)%}", "\u2060<x-evil>\u2061", "\u200b<x-evil>\ufeff"),
    *("<ScRiPt>alert(1)</sCrIpT>", "<x-evil\u3164onclick=1>", "&#x3c;x-evil&#x3e;", "\uff1cx-evil\uff1e"),
)
MANY_HOSTILE = tuple(dict.fromkeys(opening + element for opening in OPENINGS for element in ELEMENTS))[:284]


@pytest.mark.thorough
@pytest.mark.anyio
@pytest.mark.parametrize("text", MANY_HOSTILE)
async def test_many_hostile_texts_never_become_markup(tmp_path: Path, text: str) -> None:
    await attack_every_field(tmp_path, text)


ALLOWED_TAGS = frozenset(
    "html head meta title link script body a header span nav div button form input main h1 h2 section ul ol li p code "
    "pre table thead tbody tr th td time small label select option datalist details summary strong dl dt dd footer "
    "progress meter svg rect polyline path text kbd wbr".split()
)
UNSEEN = ("\u202e", "\u2066")


@pytest.mark.anyio
@pytest.mark.parametrize("text", HOSTILE)
async def test_hostile_text_in_every_field_is_shown_and_never_becomes_markup(tmp_path: Path, text: str) -> None:
    await attack_every_field(tmp_path, text)


async def attack_every_field(tmp_path: Path, text: str) -> None:
    async with site(tmp_path) as (queue, app), Browser(app) as browser:

        @queue.task(name=f"f-{text}")
        def fail(value: str) -> None:
            current_task().progress(1, 2, value)
            error = type(value, (Exception,), {"__module__": value})(value)
            raise error

        headers = {"tag": text, text: "1"}
        job = await queue.aenqueue(
            f"f-{text}", [text], headers=headers, unique_key=text, concurrency_key=text, max_retries=0
        )
        echo = await queue.aenqueue("shop.send", [f"{text}@"])
        waiting = await queue.aenqueue(f"f-{text}", [text], delay=3600)
        await queue.aenqueue("shop.send", ["x@"], interval=3600, schedule_key=text)
        await fill(queue)
        async with AsyncWorkerPool(queue, 2, poll_interval=0.05, name=text):
            while (await job.astatus()) != "failed":
                await queue.aget(job.id)
        await add_worker(queue, text, host=text)
        if text.isprintable():
            await wait_for_approval(queue, text[:200])
        await browser.log_in()
        filters = [f"/tasks?{httpx.QueryParams({name: text})}" for name in (*FILTERS, "after")]
        wrong = [f"/tasks?{httpx.QueryParams({name: text})}" for name in ("status", "queue")]
        bulk = [f"/bulk?{httpx.QueryParams({'verb': verb, 'function': text})}" for verb in ("retry", "cancel", text)]
        started = await browser.act("/bulk/start", verb="delete", function=f"f-{text}", worker=text)
        assert started.status_code == 303
        pages = [
            *bulk,
            started.headers["location"],
            *PAGES,
            *(f"/tasks/{one.id}" for one in (job, echo, waiting)),
            *filters,
            *wrong,
        ]
        pages.append(f"/tasks/{quote(text, safe='')}")
        pages.append(f"/waits?{httpx.QueryParams({'event': text, 'after': text})}")
        pages.append(f"/login?{httpx.QueryParams({'code': text})}")
        for path in pages:
            answer = await browser.get(path)
            assert answer.status_code in (200, 400, 403, 404), (path, answer.text)
            check_page(answer.text, path)
        shown = (await browser.get(f"/tasks/{job.id}")).text
        assert "It failed" in shown
        check_page((await browser.get("/tasks")).text, "/tasks")


def check_page(page: str, path: str) -> None:
    """No element, handler or address comes from data, and no character hides or reorders text."""
    found = Elements()
    found.feed(page)
    assert found.tags <= ALLOWED_TAGS, (path, found.tags - ALLOWED_TAGS)
    assert not [name for name in found.attributes if name.startswith("on") or name == "style"], path
    assert all(link.startswith(("/", "#")) and not link.startswith("//") for link in found.links), (path, found.links)
    assert len(found.scripts) == 3, path
    assert all(source is not None and source.startswith("/static/") for source in found.scripts), path
    assert not any(one in page for one in UNSEEN), path
    assert "1779547" not in page, path
