"""The verbs of the port, said to a Redis or Valkey server. Everything that moves a task is one script.

What a task becomes is decided in `tasks/task.py`, also where a script spells it out (`EXCHANGE`). The clock is the
server's. Tasks of one queue are on one node of a cluster; where a task is, is kept under its id.
"""

from __future__ import annotations

import asyncio
import heapq
import logging
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING, Any

import msgspec

from bullpen.errors import InvalidOption, StorageClosed, StorageError
from bullpen.storage.ear import RESULT, WORK, Ear
from bullpen.storage.gathering import Gathering
from bullpen.storage.port import Counts, Decide, Exchange, Hold, Limit, Renewal, TaskFilter, WorkerRecord
from bullpen.storage.redis import scripts
from bullpen.storage.redis.failures import told
from bullpen.storage.redis.rows import changed_words, new_words, settlement_words, task_of
from bullpen.tasks.task import (
    ERRORS_KEPT,
    Progress,
    Settlement,
    Task,
    TaskStatus,
    cancelled_by_operator,
    expired,
    redriven,
)

if TYPE_CHECKING:
    from redis.asyncio import Redis

log = logging.getLogger("bullpen.storage")

Move = Callable[[Task, float], Task | None]
Tasks = list[Task]  # `list` is a verb of stores
PAGE = 200
REMEMBERED = 10_000

_decode_worker = msgspec.json.Decoder(WorkerRecord).decode


class RedisStorage:
    """A store on a Redis or Valkey server, under keys that begin with `prefix`."""

    durable = True

    def __init__(self, url: str, *, prefix: str = "bullpen") -> None:
        if not prefix or not prefix.isprintable() or set(prefix) & set("{} "):
            raise InvalidOption("prefix", prefix, "a few characters, none of them a space or a curly bracket")
        self.url = url
        self.prefix = prefix
        self.name = f"Redis prefix {prefix!r}"
        self._channel = f"{prefix}:news"
        self._client: Redis | None = None
        self._scripts: dict[str, Any] = {}
        self._opening = asyncio.Lock()
        self._ear: Ear | None = None
        self._gathering: Gathering | None = None
        self._pid = 0
        self._closed = False
        self._queue_of: dict[str, str] = {}  # of tasks that were claimed here and are not settled; may forget

    # Its life.

    async def open(self) -> None:
        """Connect, and look whether the server can be trusted with tasks. Also done by whatever is called first."""
        self._closed = False
        await self._connected()

    async def close(self) -> None:
        """Wait for what was begun, and let go of the server."""
        self._closed = True
        is_own = self._pid == os.getpid()
        if self._gathering is not None and is_own:
            await self._gathering.close()
        client, self._client = self._client, None
        ear, self._ear, self._gathering = self._ear, None, None
        if ear is not None and is_own:
            await ear.close()
        if client is not None and is_own:
            await client.aclose()

    def another(self) -> RedisStorage:
        return RedisStorage(self.url, prefix=self.prefix)

    async def _connected(self) -> Redis:
        if self._client is not None and self._pid == os.getpid():
            return self._client
        if self._closed:
            raise StorageClosed("it was closed", storage=self.name)
        async with self._opening:
            if self._client is None or self._pid != os.getpid():  # connections of a parent process are the parent's
                from redis.asyncio import Redis

                async with told(self.name):
                    client = Redis.from_url(self.url, health_check_interval=30)
                    try:
                        await self._check(client)
                    except BaseException:
                        await client.aclose()
                        raise
                self._client, self._pid, self._scripts = client, os.getpid(), {}
                self._ear = self._gathering = None
            assert self._client is not None
            return self._client

    async def _check(self, client: Redis) -> None:
        """What the server's settings mean for what is promised."""
        from redis import exceptions

        await client.ping()
        try:
            settings = await client.config_get("maxmemory-policy", "appendonly", "save")
        except exceptions.ResponseError:
            log.warning("%s: the server does not tell its settings; see that it keeps what it is given", self.name)
            return
        policy = settings.get("maxmemory-policy") or "noeviction"
        if policy.startswith("allkeys"):
            why = f"the server drops keys when its memory is full (maxmemory-policy {policy}), and tasks with them"
            raise StorageError(f"{why}; use noeviction", storage=self.name)
        if settings.get("appendonly") != "yes":
            log.warning("%s: the server has appendonly off: tasks are lost if it crashes or restarts", self.name)

    async def _run(self, script: str, keys: Sequence[str], words: Sequence[Any]) -> Any:
        async with told(self.name):
            client = await self._connected()
            registered = self._scripts.get(script)
            if registered is None:
                text = script.replace("{errors_kept}", str(ERRORS_KEPT))
                registered = self._scripts[script] = client.register_script(text)
            return await registered(keys=keys, args=words)

    @asynccontextmanager
    async def _talking(self) -> AsyncIterator[Any]:
        async with told(self.name):
            yield await self._connected()

    def _tag(self, queue: str) -> str:
        return f"{{{self.prefix}:{queue}}}"

    def _at(self, task_id: str) -> str:
        return f"{self.prefix}:at:{task_id}"

    async def _queues(self) -> list[str]:
        async with self._talking() as client:
            return sorted(name.decode() for name in await client.smembers(f"{self.prefix}:queues"))

    async def _find_queues(self, ids: Iterable[str]) -> dict[str, str]:
        """Where tasks are; those that are nowhere are left out."""
        unique = list(dict.fromkeys(ids))
        if not unique:
            return {}
        async with self._talking() as client:
            found = await client.mget([self._at(task_id) for task_id in unique])
        return {task_id: queue.decode() for task_id, queue in zip(unique, found, strict=True) if queue is not None}

    async def now(self) -> float:
        async with self._talking() as client:
            seconds, microseconds = await client.time()
        return float(seconds) + float(microseconds) / 1e6

    # Producers.

    async def add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        if not tasks:
            return []
        await self._connected()
        if self._gathering is None:
            self._gathering = Gathering(self._add)
        return await self._gathering.add(tasks)

    async def _add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        there = await self._find_queues([task.id for task in tasks])
        by_queue: dict[str, dict[str, Task]] = {}
        for task in tasks:
            by_queue.setdefault(there.get(task.id, task.queue), {}).setdefault(task.id, task)
        async with self._talking() as client:
            await client.sadd(f"{self.prefix}:queues", *by_queue)
            # Where it is comes first: a task that nobody finds would be lost, a note that leads nowhere is not.
            await client.mset({self._at(task.id): there.get(task.id, task.queue) for task in tasks})
        kept: dict[str, Task] = {}
        others: dict[str, str] = {}
        for queue, given in by_queue.items():
            words = [word for task in given.values() for word in new_words(task)]
            answers = await self._run(scripts.ADD, [self._tag(queue)], [self._channel, queue, *words])
            for task, (is_new, value) in zip(given.values(), answers, strict=True):
                if is_new:
                    moment = float(value)
                    kept[task.id] = msgspec.structs.replace(task, created_at=moment, eta=max(task.eta, 0.0) or moment)
                else:
                    others[task.id] = value.decode()
        if others:
            await self._explain_others(others, kept)
        first: dict[str, Task] = {}
        return [first.setdefault(task.id, kept[task.id]) for task in tasks]

    async def _explain_others(self, others: dict[str, str], kept: dict[str, Task]) -> None:
        """Those that were there already, under their id or their unique key."""
        found = await self.get(list(others.values()))
        for (task_id, other), task in zip(others.items(), found, strict=True):
            if task is None:  # it was forgotten a moment ago
                raise StorageError(f"task {other} was forgotten meanwhile; add {task_id} again", storage=self.name)
            kept[task_id] = task
        gone = [self._at(task_id) for task_id, other in others.items() if task_id != other]
        if gone:
            async with self._talking() as client:
                await client.delete(*gone)

    # Workers.

    async def exchange(
        self,
        settlements: Sequence[Settlement],
        *,
        worker: str,
        queues: Sequence[str],
        limit: int,
        lease: float,
        claim_id: str,
    ) -> Exchange:
        return await self._exchange(settlements, {}, worker, queues, limit, lease, claim_id)

    async def _exchange(
        self,
        settlements: Sequence[Settlement],
        leases: dict[str, float | None],
        worker: str = "",
        queues: Sequence[str] = (),
        limit: int = 0,
        lease: float = 0.0,
        claim_id: str = "",
    ) -> Exchange:
        """`leases`: what tasks must still have, to be settled."""
        known = self._queue_of
        unknown = [one.id for one in settlements if one.id not in known]
        places = {
            **await self._find_queues(unknown),
            **{one.id: known[one.id] for one in settlements if one.id in known},
        }
        wanted = list(dict.fromkeys(queues)) if limit > 0 else []
        names = list(dict.fromkeys([*wanted, *(places[one.id] for one in settlements if one.id in places)]))
        numbers = {name: str(number) for number, name in enumerate(names, start=1)}
        words: list[Any] = [self._channel, worker, str(limit), repr(float(lease)), claim_id, str(len(wanted))]
        words += [numbers[name] for name in wanted]
        refused = {Hold(one.id, one.attempt) for one in settlements if one.id not in places}
        for one in settlements:
            if one.id in places:
                queue = places[one.id]
                words += [numbers[queue], queue, *settlement_words(one, leases.get(one.id))]
        if not names:
            return Exchange((), frozenset(refused))
        denied, claimed = await self._run(scripts.EXCHANGE, [self._tag(name) for name in names], words)
        refused.update(Hold(denied[i].decode(), int(denied[i + 1])) for i in range(0, len(denied), 2))
        for one in settlements:
            known.pop(one.id, None)
        if len(known) > REMEMBERED:  # of tasks that were lost
            known.clear()
        tasks = []
        for task_id, number, fields, errors in claimed:
            queue = names[number - 1]
            task = task_of(queue, task_id.decode(), fields, errors)
            known[task.id] = queue
            tasks.append(task)
        return Exchange(tuple(tasks), frozenset(refused))

    def settle_in(self, connection: Any, settlement: Settlement) -> None:  # noqa: ARG002
        why = "tasks in Redis share no transaction with anything else; use sqlite:/// or postgresql://"
        raise StorageError(why, storage=self.name)

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        found = []
        for queue in await self._queues():
            for task_id, fields, errors in await self._run(scripts.FIND_CLAIM, [self._tag(queue)], [claim_id]):
                found.append(task_of(queue, task_id.decode(), fields, errors))
        return sorted(found, key=lambda task: (-task.priority, task.eta, task.id))

    async def renew(self, holds: Sequence[Hold], lease: float) -> Renewal:
        by_queue = await self._by_queue(holds)
        lost = set(holds) - {hold for some in by_queue.values() for hold in some}
        cancelled: set[Hold] = set()
        for queue, some in by_queue.items():
            words = [word for hold in some for word in (hold.id, str(hold.attempt))]
            answers = await self._run(scripts.RENEW, [self._tag(queue)], [repr(float(lease)), *words])
            lost.update(hold for hold, answer in zip(some, answers, strict=True) if answer == 0)
            cancelled.update(hold for hold, answer in zip(some, answers, strict=True) if answer == 2)
        return Renewal(frozenset(lost), frozenset(cancelled))

    async def _by_queue(self, holds: Sequence[Hold]) -> dict[str, list[Hold]]:
        places = await self._find_queues(hold.id for hold in holds)
        by_queue: dict[str, list[Hold]] = {}
        for hold in holds:
            if hold.id in places:
                by_queue.setdefault(places[hold.id], []).append(hold)
        return by_queue

    async def note_progress(self, hold: Hold, progress: Progress) -> bool:
        for queue in await self._by_queue([hold]):
            words = [hold.id, str(hold.attempt), msgspec.json.encode(progress)]
            return bool(await self._run(scripts.PROGRESS, [self._tag(queue)], words))
        return False

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        rescued: Tasks = []
        for queue in await self._queues():
            moment, late = await self._run(scripts.OVERDUE, [self._tag(queue)], list(dead_workers))
            settlements: list[Settlement] = []
            leases: dict[str, float | None] = {}
            for task_id, fields, errors in late:
                if len(rescued) + len(settlements) >= limit:
                    break
                task = task_of(queue, task_id.decode(), fields, errors)
                settlement = decide(task, float(moment))
                if settlement is not None:
                    settlements.append(settlement)
                    leases[task.id] = task.lease_until
            if settlements:
                exchange = await self._exchange(settlements, leases)
                taken = [one.id for one in settlements if Hold(one.id, one.attempt) not in exchange.refused]
                rescued += [task for task in await self.get(taken) if task is not None]
        return rescued

    # Waiting.

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        names = list(dict.fromkeys(queues))
        tags = [self._tag(name) for name in names]

        async def soonest() -> float | None:
            answer = await self._run(scripts.NEXT_WORK, tags, [])
            return float(answer) if answer else None

        await self._wait(timeout, [WORK + name for name in names], soonest)

    async def wait_for_result(self, task_id: str, runs: int, timeout: float) -> None:
        async def is_there() -> float | None:
            for queue in (await self._find_queues([task_id])).values():
                if not await self._run(scripts.AWAIT, [self._tag(queue)], [task_id, str(runs)]):
                    return None
            return 0.0

        await self._wait(timeout, [RESULT + task_id], is_there)

    async def _wait(
        self, timeout: float, notifications: Iterable[str], seconds_until: Callable[[], Awaitable[float | None]]
    ) -> None:
        await self._connected()
        if self._ear is None:
            self._ear = Ear(self._listen, self.name)
        await self._ear.listen()
        await self._ear.wait(timeout, notifications, seconds_until)

    async def _listen(self, begin: Callable[[], None], hear: Callable[[str], None]) -> None:
        client = await self._connected()
        async with client.pubsub(ignore_subscribe_messages=True) as news:
            await news.subscribe(self._channel)
            begin()
            async for message in news.listen():
                hear(message["data"].decode())

    # People.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        places = await self._find_queues(ids)
        unique = list(places)
        async with self._talking() as client, client.pipeline(transaction=False) as asking:
            for task_id in unique:
                tag = self._tag(places[task_id])
                asking.hgetall(f"{tag}:t:{task_id}")
                asking.lrange(f"{tag}:e:{task_id}", 0, -1)
            answers = await asking.execute() if unique else []
        found = {}
        for number, task_id in enumerate(unique):
            fields, errors = answers[2 * number], answers[2 * number + 1]
            if fields:
                flat = [word for pair in fields.items() for word in pair]
                found[task_id] = task_of(places[task_id], task_id, flat, errors)
        return [found.get(task_id) for task_id in ids]

    async def list(self, which: TaskFilter, *, limit: int, after: str | None = None) -> Sequence[Task]:
        if which.ids is not None:
            tasks = [task for task in await self.get(list(dict.fromkeys(which.ids))) if task is not None]
            fitting = [task for task in tasks if _fits(task, which) and (after is None or task.id > after)]
            return sorted(fitting, key=lambda task: task.id)[:limit]
        found: Tasks = []
        for queue in await self._queues():
            if which.queues is None or queue in which.queues:
                found += await self._list_queue(queue, which, limit, after)
        return heapq.nsmallest(limit, found, key=lambda task: task.id)

    async def _list_queue(self, queue: str, which: TaskFilter, limit: int, after: str | None) -> Tasks:
        found: Tasks = []
        while len(found) < limit:
            start = "-" if after is None else f"({after}"
            async with self._talking() as client:
                page = await client.zrangebylex(f"{self._tag(queue)}:ids", start, "+", 0, PAGE)
            if not page:
                break
            after = page[-1].decode()
            found += [task for task in await self.get([word.decode() for word in page]) if task and _fits(task, which)]
        return found[:limit]

    async def counts(self) -> Counts:
        counts = {}
        for queue in await self._queues():
            async with self._talking() as client:
                found = await client.hgetall(f"{self._tag(queue)}:counts")
            of_queue = {TaskStatus(status.decode()): int(count) for status, count in found.items() if int(count)}
            if of_queue:
                counts[queue] = of_queue
        return counts

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._change(ids, cancelled_by_operator, await self.now())

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._change(ids, redriven, await self.now())

    async def _change(self, ids: Sequence[str], move: Move, now: float) -> Tasks:
        changed = []
        for task_id in dict.fromkeys(ids):
            while True:
                (before,) = await self.get([task_id])
                after = None if before is None else move(before, now)
                if before is None or after is None:
                    break
                task, *what = changed_words(before, after)
                words = [self._channel, before.queue, task, *what]
                answer = await self._run(scripts.CHANGE, [self._tag(before.queue)], words)
                if answer == 1:
                    changed.append(after)
                if answer != 0:  # else it has moved meanwhile: look again
                    break
        return changed

    async def delete(self, ids: Sequence[str]) -> int:
        by_queue: dict[str, list[str]] = {}
        for task_id, queue in (await self._find_queues(ids)).items():
            by_queue.setdefault(queue, []).append(task_id)
        count = 0
        for queue, some in by_queue.items():
            count += await self._gone(await self._run(scripts.DELETE, [self._tag(queue)], some))
        return count

    async def _gone(self, ids: Sequence[bytes]) -> int:
        if ids:
            async with self._talking() as client:
                await client.delete(*[self._at(task_id.decode()) for task_id in ids])
        return len(ids)

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        late: Tasks = []
        for queue in await self._queues():
            if len(late) >= limit:
                break
            moment, ids = await self._run(scripts.LATE, [self._tag(queue)], [str(limit - len(late))])
            late += await self._change([task_id.decode() for task_id in ids], expired, float(moment))
        return late

    async def prune(self, *, limit: int) -> int:
        count = 0
        for queue in await self._queues():
            if count >= limit:
                break
            count += await self._gone(await self._run(scripts.PRUNE, [self._tag(queue)], [str(limit - count)]))
        return count

    # Workers, queues, limits.

    async def note_worker(self, record: WorkerRecord) -> None:
        seen = msgspec.structs.replace(record, seen_at=await self.now())
        async with self._talking() as client:
            await client.hset(f"{self.prefix}:workers", record.id, msgspec.json.encode(seen))

    async def drop_worker(self, worker: str) -> None:
        async with self._talking() as client:
            await client.hdel(f"{self.prefix}:workers", worker)

    async def workers(self) -> Sequence[WorkerRecord]:
        async with self._talking() as client:
            records = await client.hvals(f"{self.prefix}:workers")
        return sorted(map(_decode_worker, records), key=lambda record: record.id)

    async def pause(self, queue: str) -> None:
        async with self._talking() as client:
            await client.sadd(f"{self.prefix}:queues", queue)
            await client.hset(f"{self._tag(queue)}:limits", "paused", "1")

    async def resume(self, queue: str) -> None:
        async with self._talking() as client:
            await client.hdel(f"{self._tag(queue)}:limits", "paused")
            await client.publish(self._channel, WORK + queue)

    async def paused(self) -> frozenset[str]:
        names = await self._queues()
        async with self._talking() as client:
            return frozenset([name for name in names if await client.hexists(f"{self._tag(name)}:limits", "paused")])

    async def set_limit(self, limit: Limit) -> None:
        terms = {
            "max_running": limit.max_running,
            "max_running_per_key": limit.max_running_per_key,
            "rate": None if limit.rate is None else repr(float(limit.rate)),
        }
        key = f"{self._tag(limit.queue)}:limits"
        async with self._talking() as client:
            await client.sadd(f"{self.prefix}:queues", limit.queue)
            async with client.pipeline(transaction=True) as together:
                together.hdel(key, *terms)
                if any(value is not None for value in terms.values()):
                    together.hset(key, mapping={name: value for name, value in terms.items() if value is not None})
                together.publish(self._channel, WORK + limit.queue)
                await together.execute()

    async def limits(self) -> Sequence[Limit]:
        limits = []
        for queue in await self._queues():
            async with self._talking() as client:
                words = await client.hmget(f"{self._tag(queue)}:limits", "max_running", "max_running_per_key", "rate")
            most, per_key, rate = words
            if words != [None, None, None]:
                limits.append(
                    Limit(
                        queue=queue,
                        max_running=None if most is None else int(most),
                        max_running_per_key=None if per_key is None else int(per_key),
                        rate=None if rate is None else float(rate),
                    )
                )
        return limits


def _fits(task: Task, which: TaskFilter) -> bool:
    return (
        (which.queues is None or task.queue in which.queues)
        and (which.statuses is None or task.status in which.statuses)
        and (which.func_path is None or task.func_path == which.func_path)
        and (which.worker is None or task.worker == which.worker)
    )
