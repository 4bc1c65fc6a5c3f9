"""What every verb of the store needs: a connection, scripts run on the server, and the queue of a task."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any
from uuid import uuid4

from bullpen.errors import InvalidOption, StorageError
from bullpen.tasks.model.ids import is_schedule
from bullpen.tasks.model.options import QUEUE_NAME
from bullpen.tasks.storage.notifications import Hear
from bullpen.tasks.storage.port import HealthFinding
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.blocking_connection import BlockingConnection
from bullpen.tasks.storage.redis.cluster_connection import ClusterConnection, by_slot
from bullpen.tasks.storage.redis.connection import RedisConnection
from bullpen.tasks.storage.redis.failures import translated_errors
from bullpen.tasks.storage.redis.health_checks import info_of, is_too_old, run_health_checks, settings_of
from bullpen.tasks.storage.redis.loop_connection import LoopConnection
from bullpen.tasks.storage.server import ServerStorage
from bullpen.telemetry import SafeLogger

log = SafeLogger("bullpen.storage")

MAX_REMEMBERED = 20_000  # tasks whose queue a client remembers
_IDS = re.compile(rb"[!-~]*")
_PREFIX = re.compile(r"[^{} ]+|[^{} ]*\{[^{} ]+\}[^{} ]*")

_GLOB, _ESCAPED = re.compile(r"[*?\[\]\\]"), r"\\\g<0>"  # of SCAN

_warned: set[tuple[str, str]] = set()  # addresses, and the warnings that this process has logged about them


def queue_names(stored: Iterable[bytes]) -> list[str]:
    """The names in the list of queues, without those that another program has written."""
    return sorted(filter(QUEUE_NAME.fullmatch, (name.decode(errors="replace") for name in stored)))


def are_ids(stored: Sequence[bytes]) -> bool:
    """Whether a client may have written all of these as ids."""
    return all(stored) and _IDS.fullmatch(b"".join(stored)) is not None


class RedisClient(ServerStorage[RedisConnection]):
    """The connection to one server or cluster, under keys that begin with `prefix`."""

    def __init__(self, url: str, *, prefix: str = "bullpen", cluster: bool = False) -> None:
        if not prefix.isprintable() or not _PREFIX.fullmatch(prefix):
            raise InvalidOption("prefix", prefix, "a few characters without a space; one part may be in {}")
        super().__init__(f"Redis prefix {prefix!r}")
        self.url = url
        self.prefix = prefix
        self.cluster = cluster
        self._is_blocking = False  # its coroutines, except the two waits, never wait for an event loop
        self._tag_of = "{}:{}" if "{" in prefix else "{{{}:{}}}"
        self._list_of_queues = f"{prefix}:queues"
        self._channel = f"{prefix}:news"
        self._events = f"{self._tag('')}:events"  # no queue has this tag
        self._channel_of_ends = f"{prefix}:news:{uuid4().hex}:ends"  # of this client alone
        self._queue_of: dict[str, str] = {}  # by task id; a cache, and schedules may have moved since
        self._listed: set[str] = set()  # queues that are known to be in the list of queues
        self._has_searched = False  # for queues that are not in the list

    async def _connect(self) -> RedisConnection:
        with translated_errors(self.name):
            connection = self._new_connection()
            try:
                await self._check(connection)
            except BaseException:
                await connection.close()
                raise
        self._listed.clear()
        self._has_searched = False
        return connection

    def _new_connection(self) -> RedisConnection:
        if self.cluster:
            return ClusterConnection(self.url)
        return BlockingConnection(self.url) if self._is_blocking else LoopConnection(self.url)

    async def _disconnect(self, client: RedisConnection) -> None:
        await client.close()

    async def _check(self, connection: RedisConnection) -> None:
        """Raise if the settings of the server lose tasks, and warn if they may."""
        for info in await info_of(connection):
            if is_too_old(info):
                why = f"the server is Redis {info['redis_version']}; Bullpen needs Redis 6.2 or newer, or Valkey"
                raise StorageError(why, storage=self.name)
            if not self.cluster and info.get("cluster_enabled") == "1":
                raise StorageError("the server is a node of a cluster; use redis+cluster://", storage=self.name)
        for settings in await settings_of(connection):
            if settings is None:
                self._warn_once(
                    "the server rejects CONFIG GET; make sure that appendonly is on and maxmemory-policy is noeviction"
                )
                continue
            policy = settings.get("maxmemory-policy") or "noeviction"
            if policy.startswith("allkeys"):
                why = f"the server evicts keys, and so tasks, when its memory is full (maxmemory-policy {policy})"
                raise StorageError(f"{why}; use noeviction", storage=self.name)
            if settings.get("appendonly") != "yes":
                self._warn_once("the server has appendonly off: tasks are lost if it crashes or restarts")

    def _warn_once(self, message: str) -> None:
        """Log a warning once per process and address."""
        if (self.url, message) not in _warned:
            _warned.add((self.url, message))
            log.warning("%s: %s", self.name, message)

    async def check_health(self) -> Sequence[HealthFinding]:
        with translated_errors(self.name):
            connection = self._new_connection()
            try:
                return await run_health_checks(connection, self.url)
            finally:
                await connection.close()

    async def now(self) -> float:
        with translated_errors(self.name):
            return await (await self._connected()).now()

    async def _run(self, script: scripts.Script, queue: str, words: Sequence[Any]) -> Any:
        """Run a script that is safe to repeat."""
        with translated_errors(self.name):
            connection = await self._connected()
            return await connection.run(script, [self._tag(queue)], words)

    async def _run_each(self, script: scripts.Script, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """Run a script that is safe to repeat, on each of several queues."""
        if not calls:
            return []
        with translated_errors(self.name):
            connection = await self._connected()
            return await connection.run_each(script, [(self._tag(queue), words) for queue, words in calls])

    async def _execute(self, *words: Any) -> Any:
        with translated_errors(self.name):
            return await (await self._connected()).execute(*words)

    async def _execute_for_queues(self, queues: Sequence[str], verb: str, name: str, *words: Any) -> list[Any]:
        """Run a command that is safe to repeat, on one key of each of several queues."""
        with translated_errors(self.name):
            connection = await self._connected()
            return await connection.execute_many([(verb, f"{self._tag(queue)}:{name}", *words) for queue in queues])

    # Keys and queues.

    def _tag(self, queue: str) -> str:
        return self._tag_of.format(self.prefix, queue)

    def _within_reach(self, tags: Sequence[str]) -> list[list[str]]:
        """Group tags by node: one script may touch the tags of one group."""
        return by_slot(tags) if self.cluster else [list(tags)]

    def check_reach(self, queues: Sequence[str]) -> None:
        if len(self._within_reach([self._tag(queue) for queue in queues])) > 1:
            why = f"on a cluster, tasks of different queues cannot depend on each other ({', '.join(queues)})"
            advice = f"keep the queues on one node with curly brackets: ?prefix={{{self.prefix}}}"
            raise StorageError(f"{why}; {advice}", storage=self.name)

    async def _queues(self) -> list[str]:
        queues = queue_names(await self._execute("SMEMBERS", self._list_of_queues))
        if not queues and not self._has_searched:  # there are none, or the list was lost
            return await self._search_queues()
        return queues

    async def _search_queues(self) -> list[str]:
        """List every queue that has tasks or limits. This reads the names of all keys of the server."""
        self._has_searched = True
        before, behind = self._tag("\0").split("\0")
        with translated_errors(self.name):
            keys = await (await self._connected()).scan(f"{_GLOB.sub(_ESCAPED, before)}*{behind}:[il]*s")
        parts = [key.decode(errors="replace").removeprefix(before).rpartition(f"{behind}:") for key in keys]
        names = {name for name, _, kind in parts if kind in ("ids", "limits")}
        if queues := sorted(filter(QUEUE_NAME.fullmatch, names)):
            await self._list_queues(queues)
        return queues

    async def _queues_with(self, name: str, until: str = "") -> list[str]:
        """The queues that have an entry in a sorted set up to `until`, or up to now."""
        name_of = {self._tag(queue): queue for queue in await self._queues()}
        found: list[str] = []
        with translated_errors(self.name):
            connection = await self._connected()
            for tags in self._within_reach(list(name_of)) if name_of else ():
                numbers = await connection.run(scripts.QUEUES_DUE, tags, [name, until])
                found += [name_of[tags[number - 1]] for number in numbers]
        return found

    async def _list_first(self, queues: Iterable[str]) -> None:
        """On a cluster, list queues before a script writes to them, because the script may not reach the list."""
        if self.cluster and not self._listed.issuperset(queues):
            await self._list_queues(queues)

    async def _list_again(self, queues: Iterable[str]) -> None:
        """On a cluster, list queues after a script wrote to them, because `prune` may have removed them meanwhile."""
        if self.cluster:
            await self._list_queues(queues)

    async def _list_queues(self, queues: Iterable[str]) -> int:
        """Add queues to the list. Returns how many were missing."""
        added = await self._execute("SADD", self._list_of_queues, *queues)
        self._listed.update(queues)
        return int(added)

    async def _find_queues(self, ids: Iterable[str], *, held: bool = False) -> dict[str, str]:
        """The queue of each task that exists. `held`: this worker holds the tasks, so none has moved."""
        places, unknown = {}, []
        for task_id in dict.fromkeys(ids):
            queue = self._queue_of.get(task_id)
            if queue is None or (is_schedule(task_id) and not held):
                unknown.append(task_id)
            else:
                places[task_id] = queue
        if unknown and (queues := await self._queues()):
            answers = await self._run_each(scripts.LOCATE, [(queue, unknown) for queue in queues])
            for queue, answer in zip(queues, answers, strict=True):
                found = {task_id: queue for task_id, is_here in zip(unknown, answer, strict=True) if is_here}
                self._remember(found)
                places |= found
        return places

    async def _by_queue(self, ids: Iterable[str]) -> dict[str, list[str]]:
        by_queue: dict[str, list[str]] = {}
        for task_id, queue in (await self._find_queues(ids)).items():
            by_queue.setdefault(queue, []).append(task_id)
        return by_queue

    def _remember(self, places: dict[str, str]) -> None:
        if len(self._queue_of) + len(places) > MAX_REMEMBERED:
            self._queue_of.clear()
        if len(places) <= MAX_REMEMBERED:
            self._queue_of.update(places)

    async def _gave_names(self, queue: str, ids: Sequence[bytes]) -> bool:
        """Whether one of these stored ids was none that a client writes, so that no verb could name its task. Then all
        such tasks of the queue have got another id, and have failed.
        """
        if are_ids(ids):
            return False
        await self._run(scripts.REPAIR, queue, [""])
        return True

    # Channels.

    async def _listen_for_work(self, begin: Callable[[], None], hear: Hear) -> None:
        connection = await self._connected()
        await connection.listen([self._channel], begin, hear)

    async def _listen_for_ends(self, begin: Callable[[], None], hear: Hear) -> None:
        connection = await self._connected()
        await connection.listen([f"{self._channel}:ends", self._channel_of_ends], begin, hear)
