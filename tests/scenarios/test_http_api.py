"""The HTTP API: programs with a token enqueue, look and operate, as far as its scopes go."""

from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import date
from pathlib import Path
from typing import Any

import httpx
import pytest

from bullpen import AsyncWorkerPool, TaskQueue
from bullpen.web import app as web_app
from bullpen.web.api import OPERATIONS
from bullpen.web.openapi import ERRORS, openapi_document
from bullpen.web.tokens import SCOPES, TokenFile
from tests.scenarios.cli_support import Folder
from tests.scenarios.test_dashboard_server import served
from tests.scenarios.web_support import Browser, add_worker, fill, make_tokens, site, wait_for_approval

API = "/api/v1"


class Program:
    """A program with a token."""

    def __init__(self, client: httpx.AsyncClient, headers: dict[str, str]) -> None:
        self._client = client
        self._headers = headers

    async def ask(self, method: str, path: str, expected: int = 200, **more: Any) -> Any:
        headers = self._headers | more.pop("headers", {})
        answer = await self._client.request(method, API + path, headers=headers, **more)
        assert answer.status_code == expected, (path, answer.status_code, answer.text)
        if expected >= 400:
            assert answer.headers["content-type"] == "application/problem+json"
            assert set(answer.json()) == {"status", "code", "detail"}
            assert answer.json()["status"] == expected
        return answer.json()

    async def get(self, path: str, expected: int = 200, **parameters: Any) -> Any:
        return await self.ask("GET", path, expected, params=parameters)

    async def post(self, path: str, body: Any = None, expected: int = 200) -> Any:
        return await self.ask("POST", path, expected, **({} if body is None else {"json": body}))


@asynccontextmanager
async def programs(folder: Path, **options: Any) -> AsyncIterator[tuple[TaskQueue, dict[str, Program]]]:
    """A queue, and a program for each scope."""
    tokens = make_tokens(folder)
    async with site(folder, tokens=folder / "tokens", **options) as (queue, app), Browser(app) as client:
        yield queue, {scope: Program(client, tokens[scope]) for scope in SCOPES}


@pytest.mark.anyio
async def test_a_program_enqueues_waits_and_gets_the_result(tmp_path: Path) -> None:
    async with programs(tmp_path) as (queue, by):
        call = {"function": "shop.send", "args": ["ada@example.org"], "options": {"headers": {"tenant": "acme"}}}
        job = await by["enqueue"].post("/tasks", call, expected=201)
        assert job["is_new"]
        unfinished = await by["enqueue"].get(f"/tasks/{job['id']}", wait=0.01)
        assert (unfinished["task"]["status"], unfinished["result"]) == ("pending", None)
        async with AsyncWorkerPool(queue, 2, poll_interval=0.05):
            done = await by["enqueue"].get(f"/tasks/{job['id']}", wait=60)
        assert (done["task"]["status"], done["result"]) == ("success", "secret-result for ada@example.org")
        assert done["task"]["headers"] == {"tenant": "acme"}
        assert done["arguments"] is None
        operator = await by["operate"].get(f"/tasks/{job['id']}")
        assert operator["arguments"] == {"to": "ada@example.org"}
        reader = await by["read"].get(f"/tasks/{job['id']}")
        assert (reader["result"], reader["arguments"]) == (None, None)


@pytest.mark.anyio
async def test_a_repeated_call_with_a_unique_key_is_the_same_task(tmp_path: Path) -> None:
    async with programs(tmp_path) as (queue, by):
        call = {"function": "shop.send", "args": ["a@"], "options": {"unique_key": "order-7", "unique_for": 3600}}
        first = await by["enqueue"].post("/tasks", call, expected=201)
        again = [await by["enqueue"].post("/tasks", call) for _ in range(3)]
        assert all(one == {"id": first["id"], "is_new": False} for one in again)
        await by["operate"].post(f"/tasks/{first['id']}/cancel")
        assert (await by["enqueue"].post("/tasks", call))["id"] == first["id"]  # also after its end
        other = {**call, "options": {"unique_key": "order-7", "on_duplicate": "reject"}}
        rejection = await by["enqueue"].post("/tasks", other, expected=409)
        assert rejection["code"] == "task_exists"
        assert await queue.acount() == 1


@pytest.mark.anyio
async def test_arguments_have_the_types_of_the_function(tmp_path: Path) -> None:
    async with programs(tmp_path) as (queue, by):

        @queue.task(name="shop.report")
        def report(day: date, top: int = 3) -> str:
            return f"{day:%Y} {top + 1}"

        job = await by["enqueue"].post("/tasks", {"function": "shop.report", "kwargs": {"day": "2026-11-18"}}, 201)
        async with AsyncWorkerPool(queue, 1, poll_interval=0.05):
            assert (await by["enqueue"].get(f"/tasks/{job['id']}", wait=60))["result"] == "2026 4"


@pytest.mark.anyio
@pytest.mark.parametrize(
    ("body", "status", "code", "words"),
    [
        ({"function": "shop.sent", "args": ["x"]}, 404, "unknown_task", "shop.send"),
        ({"function": "os.system", "args": ["id"]}, 404, "unknown_task", "os.system"),
        ({"function": "shop.send", "args": [7]}, 400, "invalid_payload", "args[0]"),
        ({"function": "shop.send"}, 400, "invalid_payload", "to"),
        ({"function": "shop.send", "args": "x"}, 400, "wrong_parameter", "args"),
        ({"function": "shop.send", "args": ["x"], "options": {"prio": 3}}, 400, "wrong_parameter", "prio"),
        ({"function": "shop.send", "args": ["x"], "options": {"priority": 10**9}}, 400, "invalid_option", "priority"),
        (
            {"function": "shop.send", "args": ["x"], "options": {"eta": "2030-01-01T00:00"}},
            400,
            "wrong_parameter",
            "eta",
        ),
        ({"function": "shop.send", "args": ["x"], "options": {"queue": "a/b"}}, 400, "wrong_parameter", "queue"),
        ({"function": "shop.send", "args": ["x" * 300_000]}, 413, "payload_too_large", "262144"),
        ({"function": "shop.send", "args": ["x" * 1_100_000]}, 413, "request_entity_too_large", "1048576"),
        ([], 400, "wrong_parameter", "object"),
    ],
)
async def test_a_wrong_call_is_explained_and_stores_nothing(
    tmp_path: Path, body: Any, status: int, code: str, words: str
) -> None:
    async with programs(tmp_path) as (queue, by):
        rejection = await by["enqueue"].post("/tasks", body, status)
        assert rejection["code"] == code
        assert words in rejection["detail"]
        assert await queue.acount() == 0


@pytest.mark.anyio
async def test_bodies_that_are_not_small_json_are_rejected(tmp_path: Path) -> None:
    async with programs(tmp_path) as (queue, by):
        enqueue = by["enqueue"]
        for content in (b"", b"{", b"\xff", b'{"function": "\\ud800"}', b"[" * 100_000, b"null", b"NaN"):
            headers = {"content-type": "application/json"}
            await enqueue.ask("POST", "/tasks", 400, content=content, headers=headers)
        await enqueue.ask("POST", "/tasks", 415, content=b"{}", headers={"content-type": "text/plain"})
        await enqueue.ask("POST", "/tasks", 415, data={"function": "shop.send"})
        assert await queue.acount() == 0


@pytest.mark.anyio
async def test_an_operator_cancels_retries_pauses_and_runs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bullpen.web")
    async with programs(tmp_path) as (queue, by):
        operate = by["operate"]
        _, failed = await fill(queue)
        retried = await operate.post(f"/tasks/{failed}/retry")
        assert (retried["changed"], retried["task"]["status"]) == (True, "pending")
        assert (await operate.post(f"/tasks/{failed}/retry", {}))["changed"] is False
        assert (await operate.post(f"/tasks/{failed}/cancel"))["task"]["status"] == "cancelled"
        wrong = await operate.post(f"/tasks/{failed}/retry", {"from_step": "charge"}, 409)
        assert wrong["code"] == "invalid_step"
        assert await operate.post("/queues/default/pause") == {"queue": "default", "paused": True}
        assert await queue.apaused() == {"mail", "default"}
        await operate.post("/queues/default/resume")
        assert await queue.apaused() == {"mail"}
        paused = await operate.post("/schedules/shop.nightly/pause")
        assert (paused["changed"], paused["schedule"]["paused"]) == (True, True)
        assert (await operate.post("/schedules/shop.nightly/pause"))["changed"] is False
        assert (await operate.post("/schedules/shop.nightly/resume"))["schedule"]["next_run"]
        assert (await operate.post("/schedules/shop.nightly/run"))["changed"] is True
        assert (await operate.post("/schedules/other/run", expected=404))["code"] == "schedule_not_found"
        assert (await operate.post("/tasks/none/cancel", expected=404))["code"] == "task_not_found"
        told = [record.getMessage() for record in caplog.records if record.name == "bullpen.web"]
        assert f"audit: API token operate at 127.0.0.1 retried the task {failed}" in told
        assert len([one for one in told if "paused the schedule" in one]) == 1


@pytest.mark.anyio
async def test_lists_come_in_pages_and_filters_apply(tmp_path: Path) -> None:
    async with programs(tmp_path) as (queue, by):
        read = by["read"]
        await fill(queue)
        for number in range(25):
            await queue.aenqueue("shop.send", [f"{number}"], queue="bulk")
        seen, after = [], None
        while True:
            where: dict[str, Any] = {"queue": "bulk", "status": "pending", "function": "send", "limit": 10}
            page = await read.get("/tasks", **where | ({"after": after} if after else {}))
            seen += [task["id"] for task in page["tasks"]]
            after = page["next"]
            if after is None:
                break
        assert len(seen) == len(set(seen)) == 25
        assert seen == sorted(seen)
        newest = await read.get("/tasks", newest="true", limit=1, queue="bulk")
        assert newest["tasks"][0]["id"] == seen[-1]
        failed = await read.get("/tasks", status="failed", error="ValueError")
        assert [task["error"] for task in failed["tasks"]] == ["ValueError"]
        assert "no address" not in str(failed)  # tracebacks and messages are not in lists


@pytest.mark.anyio
@pytest.mark.parametrize(
    "path",
    [
        *("/tasks?limit=0", "/tasks?limit=201", "/tasks?limit=x", "/tasks?limit=", "/tasks?status=gone", "/tasks?a=1"),
        *("/tasks?queue=%3Cx%3E", "/tasks?queue=a&queue=b", "/tasks?function=%FF", "/tasks?" + "a=1&" * 30 + "b=2"),
        *("/tasks/x?wait=61", "/tasks/x?wait=-1", "/tasks/x?wait=nan", "/tasks/x?wait=inf", "/history?since=1e99"),
        *("/history?since=2592000&step=60", "/history?step=61", "/history?by=worker", "/failures?since=9999999"),
        *("/queues?x=1", "/stats?now=1", f"/tasks?key={'x' * 513}"),
    ],
)
async def test_wrong_parameters_are_rejected(tmp_path: Path, path: str) -> None:
    async with programs(tmp_path) as (_, by):
        await by["read"].ask("GET", path, 400)


@pytest.mark.anyio
async def test_figures(tmp_path: Path) -> None:
    async with programs(tmp_path) as (queue, by):
        read = by["read"]
        await fill(queue)
        await add_worker(queue, "host-a-1")
        queues = {one["name"]: one for one in (await read.get("/queues"))["queues"]}
        assert queues["mail"]["paused"] is True
        assert queues["mail"]["counts"]["pending"] == 1
        assert (await read.get("/stats"))["tasks"]["failed"] == 1
        assert [one["id"] for one in (await read.get("/workers"))["workers"]] == ["host-a-1"]
        periods = (await read.get("/history", since=600, by="function"))["periods"]
        assert sum(one["success"] for one in periods) == 1
        assert periods[0]["run"]["p50"] is not None
        (group,) = (await read.get("/failures"))["groups"]
        assert (group["type"], group["count"]) == ("ValueError", 2)
        (schedule,) = (await read.get("/schedules"))["schedules"]
        assert schedule["description"] == "At 02:30 every day (Europe/Berlin)"


@pytest.mark.anyio
async def test_each_operation_needs_its_scope(tmp_path: Path) -> None:
    async with programs(tmp_path) as (queue, by):
        _, task = await fill(queue)
        before = [await queue.alist(limit=100), await queue.apaused()]
        many = 0
        for operation in OPERATIONS:
            for scope in set(SCOPES) - set(operation.scopes):
                path = operation.path.replace("{id:path}", task)
                rejection = await by[scope].ask(operation.method, path, 403, json={"function": "shop.send"})
                assert rejection["detail"] == f"this needs a token with the scope {' or '.join(operation.scopes)}"
                many += 1
        assert many == sum(len(SCOPES) - len(one.scopes) for one in OPERATIONS)
        assert [await queue.alist(limit=100), await queue.apaused()] == before


@pytest.mark.anyio
async def test_a_read_only_dashboard_changes_nothing_through_the_api(tmp_path: Path) -> None:
    async with programs(tmp_path, read_only=True) as (queue, by):
        for operation in OPERATIONS:
            path = operation.path.replace("{id:path}", "default")
            if operation.changes:
                rejection = await by[operation.scopes[0]].ask(operation.method, path, 403)
                assert "read-only" in rejection["detail"]
        assert await queue.apaused() == frozenset()
        await by["read"].get("/queues")


@pytest.mark.anyio
async def test_without_a_tokens_file_the_api_lets_nobody_in(tmp_path: Path) -> None:
    async with site(tmp_path) as (_, app), Browser(app) as browser:
        await browser.log_in()
        for operation in OPERATIONS:  # a session is no token
            path = API + operation.path.replace("{id:path}", "x")
            answer = await browser.request(operation.method, path, headers={"authorization": "Bearer x"})
            assert (answer.status_code, answer.headers["www-authenticate"]) == (401, "Bearer")
        assert (await browser.get(f"{API}/openapi.json")).status_code == 401


@pytest.mark.anyio
async def test_a_revoked_token_is_rejected_at_once(tmp_path: Path) -> None:
    async with programs(tmp_path) as (_, by):
        await by["read"].get("/queues")
        TokenFile(tmp_path / "tokens").revoke("read")
        assert (await by["read"].get("/queues", 401))["code"] == "unauthorized"
        await by["operate"].get("/queues")


@pytest.mark.anyio
async def test_only_so_many_callers_wait(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with programs(tmp_path) as (queue, by):
        job = await queue.aenqueue("shop.send", ["x@"])
        monkeypatch.setattr(web_app, "MOST_WAITING", 1)
        for _ in range(3):  # each gives its place back
            await by["read"].get(f"/tasks/{job.id}", wait=0.01)
        monkeypatch.setattr(web_app, "MOST_WAITING", 0)
        rejection = await by["read"].get(f"/tasks/{job.id}", 503, wait=0.01)
        assert "too many callers wait" in rejection["detail"]
        await by["read"].get(f"/tasks/{job.id}")


@pytest.mark.anyio
async def test_the_document_is_served_and_names_every_operation_scope_and_error(tmp_path: Path) -> None:
    async with programs(tmp_path) as (_, by):
        served_document = await by["enqueue"].get("/openapi.json")
    assert served_document == json.loads(json.dumps(openapi_document()))
    assert openapi_document("/bullpen")["servers"] == [{"url": "/bullpen/api/v1"}]
    described = [one for path in served_document["paths"].values() for one in path.values()]
    assert {one["operationId"] for one in described} == {one.name for one in OPERATIONS}
    for one in described:
        assert set(one["responses"]) >= set(ERRORS)
        assert one["security"][0]["token"]


def test_tokens_of_the_command_line_open_the_api_of_the_server(tmp_path: Path) -> None:
    folder = Folder(tmp_path)
    folder.python("add.enqueue(1)")
    made = folder.run("tokens", "create", "api.tokens", "ci", "--scopes", "read,enqueue")
    assert made.returncode == 0, made.stderr
    assert "shown only now" in made.stderr
    token = made.stdout.strip()
    with served(folder, "--tokens", "api.tokens") as (process, address):
        assert "/api/v1" in process.told
        assert token not in process.told
        with httpx.Client(base_url=f"{address}/api/v1", headers={"authorization": f"Bearer {token}"}) as client:
            made_task = client.post("/tasks", json={"function": "app.add", "args": [1, 2]})
            assert made_task.status_code == 201
            assert client.get(made_task.headers["location"].removeprefix("/api/v1")).json()["task"]["name"] == "app.add"
            assert client.post("/queues/default/pause").status_code == 403
            assert folder.json("tokens", "list", "api.tokens")["tokens"][0]["scopes"] == ["read", "enqueue"]
            assert folder.run("tokens", "revoke", "api.tokens", "ci").returncode == 0
            assert client.get("/queues").status_code == 401
    assert folder.run("tokens", "revoke", "api.tokens", "ci").returncode == 3
    assert folder.run("tokens", "list", "nothing.here").returncode == 2
    assert folder.run("tokens", "create", "api.tokens", "x", "--scopes", "root").returncode == 2
    wrong = folder.run("dashboard", "app", "--tokens", "nothing.here", "--port", "0")
    assert wrong.returncode == 2
    assert "cannot be read" in wrong.stderr


@pytest.mark.anyio
async def test_a_program_lists_waits_and_emits_the_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "bullpen.web")
    async with programs(tmp_path) as (queue, by):
        (job,) = await wait_for_approval(queue)
        (wait,) = (await by["read"].get("/waits", event="approved:42"))["waits"]
        assert (wait["id"], wait["name"], wait["event"], wait["is_due"]) == (
            job.id,
            "shop.checkout",
            "approved:42",
            False,
        )
        assert wait["since"] < wait["until"]
        assert await by["read"].get("/waits", event="approved:43") == {"waits": [], "next": None}
        event = {"name": "approved:42", "payload": {"by": "ada"}, "ttl": 60}
        for scope in ("read", "enqueue"):
            await by[scope].post("/events", event, expected=403)
        for wrong in (
            {},
            {"name": ""},
            {"name": "a\n"},
            {"name": "x", "ttl": 0},
            {"name": "x", "payload": "x" * 300_000},
        ):
            await by["operate"].post("/events", wrong, expected=400)
        assert await by["operate"].post("/events", event, expected=201) == {
            "name": "approved:42",
            "is_new": True,
            "waiting": 1,
        }
        assert not (await by["operate"].post("/events", event))["is_new"]
        assert (await by["read"].get("/waits"))["waits"][0]["is_due"]
        async with AsyncWorkerPool(queue, 1, poll_interval=0.05):
            assert await job.aresult(timeout=60) == {"by": "ada"}
        told = [record.getMessage() for record in caplog.records if record.name == "bullpen.web"]
        assert sum("emitted the event approved:42" in one for one in told) == 1


@pytest.mark.anyio
async def test_a_method_that_a_path_does_not_have_is_answered_with_those_that_it_has(tmp_path: Path) -> None:
    tokens = make_tokens(tmp_path)
    async with site(tmp_path, tokens=tmp_path / "tokens") as (_, app), Browser(app) as client:
        for method, path, allowed in (
            ("DELETE", f"{API}/tasks", "GET, HEAD, POST"),
            ("OPTIONS", f"{API}/events", "POST"),
            ("OPTIONS", f"{API}/tasks/an-id/cancel", "POST"),
            ("DELETE", "/tasks", "GET, HEAD"),
            ("DELETE", "/static/style.css", ""),
        ):
            answer = await client.request(method, path, headers=tokens["read"])
            assert (answer.status_code, answer.headers["allow"]) == (405, allowed), path
