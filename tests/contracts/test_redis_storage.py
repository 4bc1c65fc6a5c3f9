"""The contract of stores, kept by a Redis or Valkey server."""

from __future__ import annotations

import asyncio
import contextlib
import re
import secrets
from collections.abc import Awaitable, Callable, Iterator, Sequence
from types import ModuleType
from typing import Any, ClassVar

import msgspec
import pytest
from msgspec.structs import replace
from redis.asyncio import Redis

from bullpen import TaskQueue
from bullpen.errors import StorageError
from bullpen.tasks.model.task import FAILED, PENDING, RUNNING, SUCCESS, DependsOn, Task, succeed, suspend
from bullpen.tasks.storage.port import Limit, Storage, TaskFilter
from bullpen.tasks.storage.redis import connection, raw_connection
from bullpen.tasks.storage.redis.rows import TaskBody, TaskState
from bullpen.tasks.storage.redis.store import RedisStorage
from bullpen.testing import StorageContract
from bullpen.testing.storage_contract.base import (
    A_MOMENT,
    FAR,
    added,
    claim,
    claimed_one,
    get,
    hold,
    ids,
    new_task,
    new_tasks,
    settle,
    take_back,
)
from bullpen.testing.storage_contract.links import new_group
from bullpen.testing.storage_contract.unreadable import WORKER, aside
from bullpen.testing.storage_contract.waiting import waits
from tests.redis_users import add_user, delete_user, documented_rights


async def claim_as_worker(store: Storage, *queues: str) -> list[Task]:
    """Claim ten tasks. A claim that fails may have claimed: a worker looks for its tasks, and claims again."""
    claimed: list[Task] = []
    for number in range(3):
        claim_id = f"claim-{number}-{secrets.token_hex(4)}"
        try:
            claimed += await claim(store, 10, queues=queues, claim_id=claim_id)
        except StorageError:
            claimed += await store.find_claim(claim_id)
    return claimed


async def settle_as_worker(store: Storage, claimed: Sequence[Task]) -> None:
    """A worker repeats a settlement that fails."""
    settlements = [aside(task, 1.0) if task.unreadable else succeed(task, b"1") for task in claimed]
    try:
        await settle(store, *settlements)
    except StorageError:
        await settle(store, *settlements)


def returned(x: int) -> int:
    return x


class TestRedisStorage(StorageContract):
    """As a user with the rights that the docs name, and no other."""

    url: str
    url_of_user: str
    prefix: str

    _STATES: ClassVar = {
        "hold": "whatever",
        "errors": ["{"],
        "created_at": 1e300,
        "unique_until": "text",
        "next_task_id": 5,
        "hold.no text": "no text!",
        "attempt": "text",
        "attempt.negative": -7,
        "attempt.fraction": 1.5,
        "attempt.high": 2**53,
        "priority": 3.5,
        "completed_runs": [],
        "result_ttl": float("nan"),
        "failure_ttl": float("inf"),
        "awaited": [],
        "waits_for": {},
        "eta": float("inf"),
        "status": "whatever",
    }
    _BODIES: ClassVar = {"max_retries": -1, "headers": [1], "func_path": 5, "timeout": float("nan"), "schedule": 1}
    damages_claimed = ("body", "no body", "state", "state that is a number", "short state", *_STATES, *_BODIES)
    damages_other = ("progress",)

    async def damage(self, task_id: str, kind: str) -> Callable[[], Awaitable[object]]:
        tag = f"{{{self.prefix}:default}}"
        of_body = kind in self._BODIES or kind.endswith("body")
        key = f"{tag}:body" if of_body else f"{tag}:state"
        field = "format" if kind == "newer" else kind.partition(".")[0]
        whole = {"body": b"\xc1", "state": b"\xc1", "state that is a number": b"\x05", "short state": b"\x90"}
        async with Redis.from_url(self.url) as client:
            before: Any = await client.hget(key, task_id)
            values = msgspec.msgpack.decode(before)
            if kind in self._BODIES:
                values[TaskBody.__struct_fields__.index(kind)] = self._BODIES[kind]
            elif kind not in whole and kind != "no body":
                values[TaskState.__struct_fields__.index(field)] = {**self._STATES, "progress": "{", "newer": 2}[kind]
            if kind == "no body":
                await client.hdel(key, task_id)
            else:
                packed = msgspec.msgpack.encode(values).replace(b"no text!", b"\xff" * 8)
                await client.hset(key, task_id, whole.get(kind) or packed)

        async def stored() -> object:
            async with Redis.from_url(self.url) as client:
                if of_body:
                    return await client.hget(key, task_id)
                state: Any = await client.hget(f"{tag}:damaged", task_id) or await client.hget(key, task_id)
                if kind in whole or kind.endswith("no text"):
                    return state if kind in whole else state.count(b"\xff" * 8)
                return repr(msgspec.msgpack.decode(state)[TaskState.__struct_fields__.index(field)])[:4]

        return stored

    async def _write_state(self, task_id: str, **fields: object) -> None:
        async with Redis.from_url(self.url) as client:
            key = f"{{{self.prefix}:default}}:state"
            packed: Any = await client.hget(key, task_id)
            state = msgspec.msgpack.decode(packed)
            for name, value in fields.items():
                state[TaskState.__struct_fields__.index(name)] = value
            await client.hset(key, task_id, msgspec.msgpack.encode(state))

    @pytest.mark.parametrize("limited", [False, True])
    @pytest.mark.parametrize("key", [None, "k"])
    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("priority", 7),
            ("concurrency_key", "z"),
            ("concurrency_key", ""),
            *(("status", s) for s in ("success", "running")),
        ],
    )
    async def test_a_state_that_contradicts_the_indexes_is_set_aside_once(
        self, store: Storage, field: str, value: object, key: str | None, limited: bool
    ) -> None:
        """It was claimed again and again, as fast as workers could ask."""
        if limited:
            await store.set_limit(Limit(queue="default", in_order=True))
        bad, good = await added(store, concurrency_key=key), await added(store, concurrency_key=key)
        if (key or "") == value:
            return
        await self._write_state(bad.id, **{field: value})
        claims = []
        for _ in range(4):
            for task in await claim(store, 10):
                claims.append(task.id)
                now = await store.now()
                await settle(store, aside(task, now) if task.unreadable else succeed(task, b"1"))
        assert sorted(claims) == [bad.id, good.id]
        assert ((await get(store, bad)).status, (await get(store, good)).status) == (FAILED, SUCCESS)
        assert (await get(store, bad)).unreadable
        async with Redis.from_url(self.url) as client:
            counts: Any = await client.hgetall(f"{{{self.prefix}:default}}:counts")
            left = [name async for name in client.scan_iter(match=f"{{{self.prefix}:default}}:[rkob]*", count=1000)]
        assert {status: count for status, count in counts.items() if count != b"0"} == {
            b"failed": b"1",
            b"success": b"1",
        }
        assert [name for name in left if not name.endswith((b":body", b":result"))] == []

    @pytest.mark.parametrize("status", ["pending", "success"])
    async def test_a_state_that_denies_that_its_task_runs_gives_its_place_back(
        self, store: Storage, status: str
    ) -> None:
        await store.set_limit(Limit(queue="default", max_running=2))
        bad, gone = await claimed_one(store), await claimed_one(store)
        await store.renew([hold(bad), hold(gone)], A_MOMENT)
        await self._write_state(bad.id, status=status)
        async with Redis.from_url(self.url) as client:
            await client.hdel(f"{{{self.prefix}:default}}:state", gone.id)
        assert ids(await store.rescue_expired(take_back, limit=10)) == [bad.id]
        (again,) = await claim(store, 10)
        assert again.unreadable
        await settle(store, aside(again, await store.now()))
        await store.add(new_tasks(2))
        assert len(await claim(store, 10)) == 2

    async def test_entries_without_a_task_hold_nothing_back(self, store: Storage) -> None:
        stale = {f"stale-{number}": 1.0 for number in range(300)}
        async with Redis.from_url(self.url) as client:
            for name in ("ready:0", "keyed:0", "running", "expiring", "finished"):
                await client.zadd(f"{{{self.prefix}:default}}:{name}", stale)
            good, late = await added(store), await added(store, expires=1.0)
            await store.rescue_expired(take_back, limit=10)
            for _ in range(5):
                await store.expire(limit=100)
                await store.prune(limit=100)
            assert (await get(store, late)).status is FAILED
            claimed = [task for _ in range(4) for task in await claim(store, 10)]
            assert ids(claimed) == [good.id]
            for name in ("ready:0", "expiring"):
                assert await client.zcard(f"{{{self.prefix}:default}}:{name}") == 0

    damages_history = (
        "",
        "text",
        "[]",
        "5",
        "[5]",
        '[["x"],[],[]]',
        "[[-1],[],[]]",
        "[[1e300],[],[]]",
        "[[null],[],[]]",
    )

    async def damage_history(self, value: str) -> None:
        async with Redis.from_url(self.url) as client:
            for name in ("history", "failures"):
                async for key in client.scan_iter(match=f"{self.prefix}:{name}:*", count=1000):
                    for field in await client.hkeys(key):
                        await client.hset(key, field, value)
                    await client.hset(key, "no field", value)

    async def test_a_key_of_the_wrong_type_costs_only_itself(self, store: Storage) -> None:
        """Tasks of other queues run, lists and counts work, and what has a key of its own is still there."""
        names = (
            *("body", "state", "result", "depends_on", "unique", "busy", "counts", "limits"),
            *("ids", "running", "finished", "expiring", "starts", "ready:0", "keyed:0", "keys:0"),
            *("keyed:0:k", "order:k", "regular:0", "damaged"),
        )
        for name in names:
            await store.set_limit(Limit(queue="other", max_running_per_key=100, rate=1e6))
            options = {"queue": "other", "unique_key": name, "expires": await store.now() + 60.0}
            await store.add([new_task(**options), new_task(queue="other", concurrency_key="k")])
            await settle(store, succeed(await claimed_one(store), b"1"))
            async with Redis.from_url(self.url) as client:
                await client.delete(key := f"{{{self.prefix}:other}}:{name}")
                await client.set(key, "of another program")
            good = await added(store)
            claimed = await claim_as_worker(store, "default", "other")
            assert good.id in ids(claimed), name
            await settle_as_worker(store, claimed)
            await store.list(TaskFilter(), limit=1000)
            await store.counts()
            await store.limits()
            await store.paused()
            await store.rescue_expired(take_back, limit=10)
            await store.expire(limit=10)
            await store.prune(limit=10)
            await store.close()
            await store.open()  # a client does not repair the same key again at once
            await store.cancel(ids(await store.list(TaskFilter(statuses=(PENDING, RUNNING)), limit=1000)))
            await store.set_limit(Limit(queue="other", max_running_per_key=100, rate=1e6))
            again = [new_task(queue="other", concurrency_key="k"), new_task(**options)]
            for _ in range(2):
                with contextlib.suppress(StorageError):
                    await store.add(again)
            running = await claim_as_worker(store, "other")
            assert {task.queue for task in running} == {"other"}, name
            await settle_as_worker(store, running)
            assert (await get(store, running[0])).is_final, name

    async def test_a_damaged_count_is_made_anew(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", max_running_per_key=1))
        for name, field, value in (("counts", "pending", "x"), ("counts", "failed", "-5"), ("busy", "k", "x")):
            await store.add([new_task(concurrency_key="k")])
            async with Redis.from_url(self.url) as client:
                await client.hset(f"{{{self.prefix}:default}}:{name}", field, value)
            for task in await claim_as_worker(store, "default"):
                await settle(store, succeed(task, b"1"))
            assert set((await store.counts())["default"]) == {SUCCESS}, name
            await store.close()
            await store.open()  # a client does not repair the same key again at once

    async def test_a_client_repairs_the_same_queue_again(self, store: Storage) -> None:
        """Not at once, so that a repair that does not help costs the server little."""
        for number in range(2):
            async with Redis.from_url(self.url) as client:
                await client.hset(f"{{{self.prefix}:default}}:counts", "pending", "x")
            async with asyncio.timeout(30):
                while True:
                    try:
                        await added(store)
                        break
                    except StorageError:
                        await asyncio.sleep(0.1)
            assert (await store.counts())["default"][PENDING] >= number + 1

    async def test_the_list_of_queues_is_made_anew(self, store: Storage) -> None:
        await store.add([new_task(), new_task(queue="other")])
        for damage in ("gone", "text", "alien names"):
            async with Redis.from_url(self.url) as client:
                if damage == "alien names":
                    await client.sadd(f"{self.prefix}:queues", b"\xff", "no name")
                else:
                    await client.delete(f"{self.prefix}:queues")
                if damage == "text":
                    await client.set(f"{self.prefix}:queues", "text")
            await store.save_worker(replace(WORKER, queues=("default", "other", "empty", "part-*")))
            assert set(await store.counts()) == {"default", "other"}, damage
            assert set(await store.queues()) == {"default", "other"}, damage
            async with Redis.from_url(self.url) as client:
                assert b"empty" not in await client.smembers(f"{self.prefix}:queues")

    async def test_a_queue_that_no_worker_serves_is_listed_again(self, store: Storage) -> None:
        task = await added(store, queue="alone")
        await store.set_limit(Limit(queue="limited", max_running=1))
        await store.add([new_task()])
        expected = {"alone", "limited", "default"}
        async with Redis.from_url(self.url) as client:
            await client.set(f"{{{self.prefix}:no name}}:ids", "of another program")
            await client.srem(f"{self.prefix}:queues", "alone", "limited", "default")  # that is all of the list
            other = self.make_storage()
            try:
                assert set(await other.queues()) == expected  # any client that finds no list
                assert ids(await other.list(TaskFilter(queues=("alone",)), limit=10)) == [task.id]
                await client.delete(f"{self.prefix}:queues")
                await client.sadd(f"{self.prefix}:queues", "whatever")
                await other.save_worker(WORKER)  # a worker that finds its own queue missing
                assert set(await other.queues()) == {*expected, "whatever"}
            finally:
                await other.close()

    async def test_workers_register_though_their_key_has_the_wrong_type(self, store: Storage) -> None:
        async with Redis.from_url(self.url) as client:
            await client.set(f"{self.prefix}:workers", "text")
        assert await store.workers() == []
        await store.save_worker(WORKER)
        assert [record.id for record in await store.workers()] == ["w"]

    async def test_a_task_whose_id_no_client_can_write_gets_one_and_fails(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", max_running_per_key=1))
        for number, stored in enumerate((b"\xff", b"", b"a b", "\u202e".encode(), b"\n")):
            task = await added(store, concurrency_key="k" if number % 2 else None)
            async with Redis.from_url(self.url) as client:
                tag = f"{{{self.prefix}:default}}"
                for name in ("state", "body"):
                    await client.hset(f"{tag}:{name}", stored, await client.hget(f"{tag}:{name}", task.id))
                for name in ("ids", "keyed:0", "keyed:0:k", "order:k") if number % 2 else ("ids", "ready:0"):
                    await client.zadd(f"{tag}:{name}", {stored: 0})
            good = await added(store)
            claimed = [one for _ in range(3) for one in await claim(store, 10)]
            assert {task.id, good.id} == set(ids(claimed)), stored
            await settle(store, *(succeed(one, b"1") for one in claimed))
            (named,) = await store.get([f"unreadable-{stored.hex()}"])
            assert named is not None, stored
            assert (named.status, named.errors[-1].kind) == (FAILED, "poison")
            assert await store.delete([named.id]) == 1
            assert {one.unreadable for one in await store.list(TaskFilter(), limit=1000)} == {""}, stored

    async def test_ids_without_a_task_hide_no_other_and_leave_the_indexes(self, store: Storage) -> None:
        tasks = new_tasks(450)
        await store.add(tasks)
        async with Redis.from_url(self.url) as client:
            tag = f"{{{self.prefix}:default}}"
            await client.zadd(f"{tag}:ids", {f"task-0{number}": 0 for number in range(300)})
            await client.zadd(f"{tag}:finished", {f"lost-{number}": 1.0 for number in range(300)})
            assert set(ids(await store.list(TaskFilter(), limit=1000))) == set(ids(tasks))
            for _ in range(4):
                await store.prune(limit=100)
            assert await client.zcard(f"{tag}:finished") == 0
            assert await client.zcard(f"{tag}:ids") == 450

    async def damage_worker(self, worker: str) -> None:
        async with Redis.from_url(self.url) as client:
            await client.hset(f"{self.prefix}:workers", worker, "[")

    damages_limit = tuple(
        f"{field} {value}"
        for field, values in {
            "max_running": ("x", "", "0", "-1", "nan", "0x10", "9" * 400),
            "max_running_per_key": ("x", "0", "nan"),
            "rate": ("x", "", "0", "-1", "nan", "inf", "1e-300", "1e300", "-inf"),
        }.items()
        for value in values
    )
    damages_settings = ("starts to come", "unknown field")

    async def damage_settings(self, kind: str) -> None:
        tag = f"{{{self.prefix}:other}}"
        async with Redis.from_url(self.url) as client:
            if kind == "starts to come":
                await client.zadd(f"{tag}:starts", {str(number): float("inf") for number in range(5000)})
            elif kind == "unknown field":
                await client.hset(f"{tag}:limits", b"\xff", b"\xff")
            else:
                field, value = kind.split(" ")
                await client.hset(f"{tag}:limits", field, value)

    @pytest.fixture(autouse=True)
    def _place(self, redis_url: str) -> Iterator[None]:
        self.url, self.prefix = redis_url, f"bullpen-test-{secrets.token_hex(6)}"
        self.url_of_user = add_user(self.url, self.prefix, *documented_rights(self.prefix))
        yield
        asyncio.run(self._drop())
        delete_user(self.url, self.prefix)

    async def test_a_task_that_depends_on_many_is_as_small_as_others_and_leaves_nothing(self, store: Storage) -> None:
        """It is read and written whenever one of them ends."""
        *members, last = await new_group(store, 1000)
        await store.cancel(ids(members[:1]))
        async with Redis.from_url(self.url) as client:
            tag = f"{{{self.prefix}:default}}"
            assert await client.hstrlen(f"{tag}:state", last.id) < 300
            assert await store.cancel(ids(members)) != []
            assert await store.delete(ids([*members, last])) == 1001
            left = {key.decode().removeprefix(tag) async for key in client.scan_iter(match=f"{tag}:*", count=1000)}
        assert left == set()

    async def test_a_queue_is_listed_for_as_long_as_there_is_something_in_it(self, store: Storage) -> None:
        async with Redis.from_url(self.url) as client:

            async def listed() -> set[str]:
                names: Any = await client.smembers(f"{self.prefix}:queues")
                return {name.decode() for name in names}

            for fields in ({}, {"concurrency_key": "c"}):
                task = await claimed_one(store, queue="tenant", **fields)
                await settle(store, succeed(task, b"1"))
                assert await listed() == {"tenant"}
                assert await store.delete([task.id]) == 1
                assert await listed() == set()
            parent, child = await claimed_one(store), new_task(queue="tenant")
            await settle(store, succeed(parent, b"1", children=(child,)))
            assert await listed() == {"default", "tenant"}
            assert await store.export_tasks([await get(store, child)]) == {child.id}
            assert await listed() == {"default"}
            assert await store.import_tasks([child]) == {child.id}
            assert await listed() == {"default", "tenant"}
            await store.set_limit(Limit(queue="slow", max_running=1))
            await store.pause("slow")
            await store.set_limit(Limit(queue="slow"))
            assert await listed() == {"default", "slow", "tenant"}
            await store.resume("slow")
            assert await listed() == {"default", "tenant"}

    async def test_a_wait_returns_the_ended_task(self, store: Storage) -> None:
        """So the client needs no other read. Also if the task ended before the wait."""
        task = await claimed_one(store)
        async with waits(store.wait_for_result(task.id, 0, FAR)) as waiting:
            await settle(store, succeed(task, bytes(1000)))
        kept = await store.get([task.id])
        assert [waiting.result()] == [await store.wait_for_result(task.id, 0, FAR)] == kept

    @pytest.mark.parametrize(
        ("module", "name", "value"),
        [
            (raw_connection, "_hiredis", None),
            (connection, "_pack_command", None),
            (raw_connection, "HEALTH_CHECK", -1.0),
        ],
        ids=["no parser", "no packer", "long idle"],
    )
    async def test_other_ways_to_a_server_do_the_same(
        self, store: Storage, monkeypatch: pytest.MonkeyPatch, module: ModuleType, name: str, value: object
    ) -> None:
        monkeypatch.setattr(module, name, value)
        other = self.make_storage()
        try:
            task = await claimed_one(other, payload="é".encode())
            async with waits(other.wait_for_result(task.id, 0, FAR)) as waiting:
                await settle(other, succeed(task, b"1"))
            assert [waiting.result()] == await other.get([task.id]) == await store.get([task.id])
            with pytest.raises(StorageError, match="unknown command"):
                await other._execute("NO_SUCH_COMMAND")
            assert await other.now() == pytest.approx(await store.now(), abs=60.0)
        finally:
            await other.close()
        await asyncio.to_thread(self.use_without_loop)

    def use_without_loop(self) -> None:
        with TaskQueue(self.address()) as queue:
            noop = queue.task(name="noop")(returned)
            assert noop.enqueue(1).status is PENDING
            assert queue.counts()["default"][PENDING] == 1

    async def queue_names(self, store: Storage) -> set[str]:
        """The keys of queues, and the list of queues if it exists."""
        async with Redis.from_url(self.url) as client:
            keys = [key.decode() async for key in client.scan_iter(match=f"*{self.prefix}:*", count=1000)]
        return {found[1] if (found := re.match(r"\{.*:(.*)\}:", key)) else key for key in keys}

    async def stored_steps(self, store: Storage) -> int:
        async with Redis.from_url(self.url) as client:
            return len([key async for key in client.scan_iter(match=f"*{self.prefix}:*:steps:*", count=1000)])

    async def lose_steps(self, store: Storage) -> bool:
        async with Redis.from_url(self.url) as client:
            keys = [key async for key in client.scan_iter(match=f"*{self.prefix}:*:steps:*", count=1000)]
            return bool(await client.delete(*keys))

    @pytest.mark.parametrize("stored", [b"\xff[1,", b"", b"x y z", b"nan 1 1", b"1 1e300 1"])
    async def test_a_damaged_event_makes_no_task_due(self, store: Storage, stored: bytes) -> None:
        """The task could not read it, waited again, was due again, and so on, thousands of times in a second."""
        await store.emit("e", b"1", None)
        async with Redis.from_url(self.url) as client:
            await client.hset(f"{{{self.prefix}:}}:events", "e", stored)
        await settle(store, suspend(await claimed_one(store), await store.now() + FAR, "e"))
        assert await claim(store, 10) == []
        assert await store.wait_for_event("e", 0.0) is None

    async def test_a_result_that_is_gone_is_no_result_of_none(self, store: Storage) -> None:
        task = await claimed_one(store)
        await settle(store, succeed(task, b"1"))
        async with Redis.from_url(self.url) as client:
            await client.delete(f"{{{self.prefix}:default}}:result")
        assert (await get(store, task)).result_dropped == "another program has deleted it"

    async def test_a_settlement_that_cannot_write_its_result_can_be_repeated(self, store: Storage) -> None:
        """The task was a success without a result, so its caller got None."""
        task = await claimed_one(store)
        async with Redis.from_url(self.url) as client:
            await client.set(f"{{{self.prefix}:default}}:result", "of another program")
        await settle_as_worker(store, [task])
        after = await get(store, task)
        assert (after.status, after.result) == (SUCCESS, b"1")

    async def test_a_task_whose_dependencies_are_gone_never_runs(self, store: Storage) -> None:
        first, behind = new_task(), new_task(waits_for=1)
        await store.add(
            [replace(first, next_task_id=behind.id), replace(behind, depends_on=DependsOn(ids=(first.id,)))]
        )
        await settle(store, succeed((await claim(store, 10))[0], b"1"))
        async with Redis.from_url(self.url) as client:
            await client.delete(f"{{{self.prefix}:default}}:depends_on")
        (claimed,) = await claim(store, 10)
        assert claimed.unreadable == "depends_on: another program has deleted them"

    async def _drop(self) -> None:
        async with Redis.from_url(self.url) as client:
            keys = [key async for key in client.scan_iter(match=f"*{self.prefix}:*", count=1000)]
            if keys:
                await client.delete(*keys)

    def make_storage(self) -> RedisStorage:
        return RedisStorage(self.url_of_user, prefix=self.prefix)

    def address(self) -> str:
        return f"{self.url_of_user}?prefix={self.prefix}"
