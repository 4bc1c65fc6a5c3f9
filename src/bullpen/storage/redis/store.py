"""The verbs of the port, said to a Redis or Valkey server. Everything that moves a task is one script.

What a task becomes is decided in `tasks/task.py`, also where a script spells it out (`EXCHANGE`). The clock is the
server's. Tasks of one queue are on one node of a cluster; where a task is, is kept under its id.
"""

from __future__ import annotations

import heapq
import logging
import re
from asyncio import _get_running_loop
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from typing import Any
from uuid import uuid4

import msgspec

from bullpen.errors import InvalidOption, StorageError, TaskExists
from bullpen.storage.ear import CLAIM, RESULT, WORK, Ear, Hear, Heard
from bullpen.storage.port import (
    Concern,
    Counts,
    Decide,
    Exchange,
    Handed,
    Hold,
    Limit,
    Move,
    Renewal,
    TaskFilter,
    WorkerRecord,
)
from bullpen.storage.redis import scripts
from bullpen.storage.redis.checkup import concerns_of, info_of, is_too_old, settings_of
from bullpen.storage.redis.failures import told
from bullpen.storage.redis.link import BlockingLink, ClusterLink, Link, LoopLink, by_slot
from bullpen.storage.redis.rows import (
    NEW_STATE,
    body_of,
    change_of,
    ids_and_bodies,
    ids_followed,
    new_task,
    pack,
    plain_state,
    settlement_of,
    state_of,
    task_of,
    words_in,
)
from bullpen.storage.server import ServerStorage
from bullpen.tasks.alike import Alike, different, ids_of, part_of, payloads_of
from bullpen.tasks.ids import is_schedule
from bullpen.tasks.task import (
    RUNNING,
    Progress,
    Settlement,
    Task,
    TaskStatus,
    new_as_kept,
)
from bullpen.tasks.unique import RETURN, Duplicates

log = logging.getLogger("bullpen.storage")

Tasks = list[Task]  # `list` is a verb of stores
Names = list[str]
PAGE = 200
STEP, STEP_BYTES = 5_000, 16 * 2**20  # tasks that are added at once, and their arguments
REMEMBERED = 20_000
_PREFIX = re.compile(r"[^{} ]+|[^{} ]*\{[^{} ]+\}[^{} ]*")

_decode_worker = msgspec.json.Decoder(WorkerRecord).decode


_said: set[tuple[str, str]] = set()  # addresses, and what was said about them


class RedisStorage(ServerStorage[Link]):
    """A store on a Redis or Valkey server, or a cluster of them, under keys that begin with `prefix`.

    What several queues have to do in one step, on a cluster they can do on one node only: if `prefix` has a part in
    curly brackets, which keeps all of them together.
    """

    def __init__(self, url: str, *, prefix: str = "bullpen", cluster: bool = False) -> None:
        if not prefix.isprintable() or not _PREFIX.fullmatch(prefix):
            raise InvalidOption("prefix", prefix, "a few characters without a space, maybe a part of it in {}")
        super().__init__(f"Redis prefix {prefix!r}")
        self.url = url
        self.prefix = prefix
        self.cluster = cluster
        # Where no event loop runs, every method but the two waits blocks its thread instead.
        self.blocks_without_loop = not cluster
        self._tag_of = "{}:{}" if "{" in prefix else "{{{}:{}}}"
        self._channel = f"{prefix}:news"
        own = f"{prefix}:news:{uuid4().hex}"  # what is said to this client alone
        self._channel_of_ends, self._channel_of_claims = f"{own}:ends", f"{own}:claims"
        self._queue_of: dict[str, str] = {}  # of tasks that were seen here; may forget, and schedules may have moved
        self._noted: set[str] = set()  # queues that are known to be in the list of all
        self._latest = ""  # the task that was added last, alone
        self._latest_is_awaited = False
        self._foreseen: tuple[str, Ear, Heard] | None = (
            None  # the task whose end is expected, as that of the one before
        )

    # Its life.

    def another(self) -> RedisStorage:
        return RedisStorage(self.url, prefix=self.prefix, cluster=self.cluster)

    async def _connect(self) -> Link:
        with told(self.name):
            link = self._new_link()
            try:
                await self._check(link)
            except BaseException:
                await link.close()
                raise
        self._noted.clear()
        return link

    def _new_link(self) -> Link:
        if self.cluster:
            return ClusterLink(self.url)
        return BlockingLink(self.url) if _get_running_loop() is None else LoopLink(self.url)

    async def _disconnect(self, client: Link) -> None:
        await client.close()

    async def _check(self, link: Link) -> None:
        """What the server's settings mean for what is promised."""
        for info in await info_of(link):
            if is_too_old(info):
                why = f"the server is Redis {info['redis_version']}; it has to be 6.2 or newer, or Valkey"
                raise StorageError(why, storage=self.name)
            if not self.cluster and info.get("cluster_enabled") == "1":
                raise StorageError("the server is a node of a cluster; use redis+cluster://", storage=self.name)
        for settings in await settings_of(link):
            if settings is None:
                self._warn_once("the server does not tell its settings; see that it keeps what it is given")
                continue
            policy = settings.get("maxmemory-policy") or "noeviction"
            if policy.startswith("allkeys"):
                why = f"the server drops keys when its memory is full (maxmemory-policy {policy}), and tasks with them"
                raise StorageError(f"{why}; use noeviction", storage=self.name)
            if settings.get("appendonly") != "yes":
                self._warn_once("the server has appendonly off: tasks are lost if it crashes or restarts")

    def _warn_once(self, message: str) -> None:
        """In each process, however many clients it has."""
        if (self.url, message) not in _said:
            _said.add((self.url, message))
            log.warning("%s: %s", self.name, message)

    async def concerns(self) -> Sequence[Concern]:
        with told(self.name):
            link = self._new_link()
            try:
                return await concerns_of(link, self.url)
            finally:
                await link.close()

    async def _run(self, script: str, queue: str, words: Sequence[Any], *, others_first: bool = False) -> Any:
        """A script that is safe to repeat."""
        with told(self.name):
            link = await self._connected()
            return await link.run(script, [self._tag(queue)], words, others_first=others_first)

    async def _run_each(self, script: str, calls: Sequence[tuple[str, Sequence[Any]]]) -> list[Any]:
        """The same for several queues."""
        if not calls:
            return []
        with told(self.name):
            link = await self._connected()
            return await link.run_each(script, [(self._tag(queue), words) for queue, words in calls])

    async def _say(self, *words: Any) -> Any:
        with told(self.name):
            return await (await self._connected()).say(*words)

    async def _say_to_queues(self, queues: Sequence[str], verb: str, name: str, *words: Any) -> list[Any]:
        """One command that is safe to repeat, about a key of each of several queues."""
        with told(self.name):
            link = await self._connected()
            return await link.say_each([(verb, f"{self._tag(queue)}:{name}", *words) for queue in queues])

    def _tag(self, queue: str) -> str:
        return self._tag_of.format(self.prefix, queue)

    def _within_reach(self, tags: Sequence[str]) -> list[list[str]]:
        """Tags, by what one script may touch."""
        return by_slot(tags) if self.cluster else [list(tags)]

    def check_reach(self, queues: Sequence[str]) -> None:
        if len(self._within_reach([self._tag(queue) for queue in queues])) > 1:
            why = f"on a cluster nothing links tasks of several queues ({', '.join(queues)})"
            advice = f"keep the queues together by curly brackets: ?prefix={{{self.prefix}}}"
            raise StorageError(f"{why}; {advice}", storage=self.name)

    async def _queues(self) -> list[str]:
        return sorted(name.decode() for name in await self._say("SMEMBERS", f"{self.prefix}:queues"))

    async def _queues_with(self, name: str, until: str = "") -> Names:
        """Those with something in a set by time that is due, or comes before `until`."""
        name_of = {self._tag(queue): queue for queue in await self._queues()}
        found: Names = []
        with told(self.name):
            link = await self._connected()
            for tags in self._within_reach(list(name_of)) if name_of else ():
                found += [name_of[tags[number - 1]] for number in await link.run(scripts.DUE, tags, [name, until])]
        return found

    async def _note_first(self, queues: Iterable[str]) -> None:
        """Scripts note the queues that they write to; but on a cluster the list may be out of their reach."""
        if self.cluster and not self._noted.issuperset(queues):
            await self._note(queues)

    async def _note(self, queues: Iterable[str]) -> None:
        await self._say("SADD", f"{self.prefix}:queues", *queues)
        self._noted.update(queues)

    async def _find_queues(self, ids: Iterable[str], *, held: bool = False) -> dict[str, str]:
        """Where tasks are; those that are nowhere are left out. `held`: by this worker, so that none has moved."""
        places, unknown = {}, []
        for task_id in dict.fromkeys(ids):
            queue = self._queue_of.get(task_id)
            if queue is None or (is_schedule(task_id) and not held):
                unknown.append(task_id)
            else:
                places[task_id] = queue
        if unknown and (queues := await self._queues()):
            answers = await self._run_each(scripts.WHERE, [(queue, unknown) for queue in queues])
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
        if len(self._queue_of) + len(places) > REMEMBERED:
            self._queue_of.clear()
        if len(places) <= REMEMBERED:
            self._queue_of.update(places)

    async def now(self) -> float:
        with told(self.name):
            return await (await self._connected()).now()

    # Producers.

    async def add(self, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[Task]:
        count = len(tasks)
        if count == 0:
            return []
        if duplicates is not RETURN or any(task.then is not None for task in different(tasks)):
            return await self._add_together(tasks, duplicates)
        if count > STEP or _get_running_loop() is None:
            return await self._add(tasks)
        return await super().add(tasks)

    async def _add(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Each queue for itself, for it is on one node of a cluster."""
        if len(tasks) == 1:
            return await self._add_to_queue(tasks)
        if type(tasks) is Alike:
            return await self._add_in_steps(tasks)
        by_queue: dict[str, list[Task]] = {}
        for task in tasks:
            by_queue.setdefault(task.queue, []).append(task)
        kept = {queue: iter(await self._add_in_steps(some)) for queue, some in by_queue.items()}
        return [next(kept[task.queue]) for task in tasks]

    async def _add_in_steps(self, tasks: Sequence[Task]) -> Sequence[Task]:
        """Mostly in one; but a server does nothing else meanwhile. If a later one fails, what was added before is taken
        back, unless it has begun.
        """
        steps = list(_steps(tasks))
        if len(steps) == 1:
            return await self._add_to_queue(tasks)
        kept: Tasks = []
        for step in steps:
            try:
                kept += await self._add_to_queue(step)
            except Exception:
                with suppress(StorageError):
                    for some in _steps(
                        [is_kept for new, is_kept in zip(tasks, kept, strict=False) if new.id == is_kept.id]
                    ):
                        await self.remove(some)
                raise
        return kept

    async def _add_to_queue(self, tasks: Sequence[Task]) -> Sequence[Task]:
        awaited = self._foresee(ids_of(tasks)[0]) if len(tasks) == 1 else None
        plain = plain_state(tasks, awaited)
        if plain is None:
            self._end_foresight()
            return await self._add_together(tasks, RETURN)
        queue = different(tasks)[0].queue
        await self._note_first([queue])
        words = [self._channel, queue, *plain, *ids_and_bodies(tasks)]
        script = scripts.ADD_ONE if len(tasks) == 1 else scripts.ADD_PLAIN
        try:  # whoever is going to wait for its end wants it to begin, before anything else
            answer = await self._run(script, queue, words, others_first=awaited is not None)
        except BaseException:
            self._end_foresight()
            raise
        if answer[2]:  # it is there already, and not awaited
            self._end_foresight()
        return await self._kept(tasks, [queue], answer)

    def _foresee(self, task_id: str) -> str | None:
        """Whoever has waited for the task before is going to wait for this one as well: to say so at once saves a look.
        Returns the channel on which to tell its end.
        """
        was_awaited, self._latest, self._latest_is_awaited = self._latest_is_awaited, task_id, False
        self._end_foresight()
        ear = self._ears.get(self._listen_for_ends)
        if not was_awaited or ear is None or not ear.hears:
            return None
        self._foreseen = task_id, ear, ear.expect([RESULT + task_id])
        return self._channel_of_ends

    def _end_foresight(self) -> None:
        if self._foreseen is not None:
            _, ear, heard = self._foreseen
            self._foreseen = None
            ear.forget(heard)

    async def _add_together(self, tasks: Sequence[Task], duplicates: Duplicates) -> Sequence[Task]:
        """In one step."""
        numbers: dict[str, int] = {}
        for task in tasks:
            numbers.setdefault(task.queue, len(numbers) + 1)
        names = list(numbers)
        await self._note_first(names)
        self.check_reach(names)
        push_limit = -1.0 if duplicates.push_limit is None else duplicates.push_limit
        new = [new_task(task, numbers[task.queue], body) for body, task in enumerate(tasks, start=3)]
        words = [pack((self._channel, duplicates.policy, push_limit, new)), NEW_STATE, *map(body_of, tasks)]
        with told(self.name):
            link = await self._connected()
            tags = [self._tag(name) for name in names]
            answer = await link.run(scripts.ADD, tags, words)
        if answer[0] == -1:
            _, place, other = answer
            raise TaskExists(key=tasks[place - 1].unique_key or "", task=other.decode())
        return await self._kept(tasks, names, answer)

    async def _kept(self, tasks: Sequence[Task], names: Sequence[str], answer: Sequence[Any]) -> Sequence[Task]:
        """What has become of new tasks, as `ADD` and `ADD_PLAIN` say it. `names`: of their queues."""
        moment, unlisted, others = answer
        if unlisted:  # on a cluster
            await self._note([names[number - 1] for number in unlisted])
        if type(tasks) is Alike and not others:
            self._remember(dict.fromkeys(tasks.ids, names[0]))
            return tasks.kept(float(moment))
        kept = [new_as_kept(task, float(moment)) for task in tasks]
        if others:
            places = [place - 1 for place in others[::2]]
            there = await self._those_there(places, others[1::2], kept)
            latest = {task.id: task for task in there.values()}  # one of these may be replaced by another of them
            kept = [there.get(place) or latest.get(task.id, task) for place, task in enumerate(kept)]
        self._remember({task.id: task.queue for task in kept})
        return kept

    async def _those_there(self, places: Sequence[int], ids: Sequence[bytes], kept: Sequence[Task]) -> dict[int, Task]:
        """Those that were there already, under their id or their unique key, maybe since a moment ago."""
        by_queue: dict[str, list[bytes]] = {}
        for place, task_id in zip(places, ids, strict=True):
            by_queue.setdefault(kept[place].queue, []).append(task_id)
        found: dict[str, Task] = {}
        shown = await self._run_each(scripts.SHOW, list(by_queue.items()))
        for queue, words in zip(by_queue, shown, strict=True):
            found |= {task.id: task for task in self._tasks(queue, words)}
        elsewhere = [task_id.decode() for task_id in ids if is_schedule(task_id.decode())]  # maybe
        found |= {task.id: task for task in await self.get(elsewhere) if task is not None}
        answer = {}
        for place, task_id in zip(places, ids, strict=True):
            task = found.get(task_id.decode())
            if task is None:
                why = f"task {task_id.decode()} was forgotten meanwhile; add {kept[place].id} again"
                raise StorageError(why, storage=self.name)
            answer[place] = task
        return answer

    def _tasks(self, queue: str, words: Sequence[Any]) -> Tasks:
        """What `show` has shown."""
        tasks = []
        for at in range(0, len(words), 6):
            *stored, lease = words[at : at + 6]
            tasks.append(task_of(queue, None if lease is None else float(lease), *stored))
        return tasks

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
        exchange, _ = await self._exchange(settlements, {}, worker, queues, limit, lease, claim_id)
        return exchange

    async def _exchange(
        self,
        settlements: Sequence[Settlement],
        leases: dict[str, float | None],
        worker: str = "",
        queues: Sequence[str] = (),
        limit: int = 0,
        lease: float = 0.0,
        claim_id: str = "",
    ) -> tuple[Exchange, Tasks]:
        """`leases`: what tasks must still have, to be settled; those that were, as they are then."""
        places = await self._find_queues((one.id for one in settlements), held=True) if settlements else {}
        wanted = list(dict.fromkeys(queues)) if limit > 0 else []
        of_children = [child.queue for one in settlements for child in one.children]
        names = list(dict.fromkeys([*wanted, *places.values(), *of_children]))
        if len(self._within_reach([self._tag(name) for name in names])) > 1:
            return await self._exchange_apart(settlements, places, leases, worker, wanted, limit, lease, claim_id)
        if of_children:
            await self._note_first(of_children)
        numbers = {name: number for number, name in enumerate(names, start=1)}
        refused = {Hold(one.id, one.attempt) for one in settlements if one.id not in places}
        if not names:
            return Exchange((), frozenset(refused)), []
        given, words = [], []
        for one in settlements:
            if one.id in places:
                if one.result is not None:
                    words.append(one.result)
                at = None if one.result is None else len(words) + 1
                first = len(words) + 2
                children = [new_task(child, numbers[child.queue], n) for n, child in enumerate(one.children, first)]
                words += map(body_of, one.children)
                given.append(settlement_of(one, numbers[places[one.id]], at, leases.get(one.id), children))
        if of_children:
            words.append(NEW_STATE)
        of_state = len(words) + 1
        ask = (
            self._channel,
            worker,
            limit,
            lease,
            claim_id,
            names,
            [numbers[name] for name in wanted],
            given,
            of_state,
        )
        with told(self.name):
            link = await self._connected()
            tags = [self._tag(name) for name in names]
            answer = await link.run(
                scripts.EXCHANGE, tags, [pack(ask), *words], once=True, others_first=bool(settlements)
            )
        denied, until, claimed, taken = answer
        refused.update(Hold(denied[at].decode(), int(denied[at + 1])) for at in range(0, len(denied), 2))
        lease_until = float(until)
        tasks = []
        for at in range(0, len(claimed), 6):
            number, *stored = claimed[at : at + 6]
            tasks.append(task_of(names[number - 1], lease_until, *stored))
        self._remember({task.id: task.queue for task in tasks})
        after = [task for number, shown in taken for task in self._tasks(names[number - 1], shown)]
        return Exchange(tuple(tasks), frozenset(refused)), after

    async def _exchange_apart(
        self,
        settlements: Sequence[Settlement],
        places: dict[str, str],
        leases: dict[str, float | None],
        worker: str,
        wanted: Sequence[str],
        limit: int,
        lease: float,
        claim_id: str,
    ) -> tuple[Exchange, Tasks]:
        """On several nodes of a cluster, which do nothing in one step: first what is settled, then what is claimed."""
        refused = {Hold(one.id, one.attempt) for one in settlements if one.id not in places}
        by_queue: dict[str, list[Settlement]] = {}
        for one in settlements:
            if one.id in places:
                by_queue.setdefault(places[one.id], []).append(one)
        after: Tasks = []
        for queue, some in by_queue.items():
            exchange, settled = await self._settle_apart(queue, some, leases)
            refused |= exchange.refused
            after += settled
        claimed: Tasks = []
        if wanted and limit > 0:
            for some_queues, share in await self._shares(wanted, limit):
                exchange, _ = await self._exchange([], {}, worker, some_queues, share, lease, claim_id)
                claimed += exchange.claimed
        claimed.sort(key=lambda task: (-task.priority, task.eta, task.id))
        return Exchange(tuple(claimed), frozenset(refused)), after

    async def _settle_apart(
        self, queue: str, settlements: Sequence[Settlement], leases: dict[str, float | None]
    ) -> tuple[Exchange, Tasks]:
        """Children that belong on another node come a moment before, if the attempt still holds its task."""
        has_children = any(one.children for one in settlements)
        parents = await self.get([one.id for one in settlements]) if has_children else [None] * len(settlements)
        here = []
        for one, parent in zip(settlements, parents, strict=True):
            near: list[Task] = []
            far: list[Task] = []
            for child in one.children:
                is_far = len(self._within_reach([self._tag(queue), self._tag(child.queue)])) > 1
                (far if is_far else near).append(child)
            if parent is not None and parent.status is RUNNING and parent.attempt == one.attempt and far:
                self.check_reach([child.queue for child in one.children if child.follows or child.then])
                await self.add(far)
            here.append(msgspec.structs.replace(one, children=tuple(near)))
        self._remember({one.id: queue for one in here})
        return await self._exchange(here, leases)

    async def _shares(self, queues: Sequence[str], limit: int) -> list[tuple[list[str], int]]:
        """How many to claim from each of those queues that are on one node together, to get the first of all."""
        name_of = {self._tag(name): name for name in queues}
        groups = self._within_reach(list(name_of))
        with told(self.name):
            link = await self._connected()
            peeks = [await link.run(scripts.PEEK, tags, [str(limit)]) for tags in groups]
        heads = sorted(
            (-peek[at], float(peek[at + 1]), peek[at + 2], number)
            for number, peek in enumerate(peeks)
            for at in range(0, len(peek), 3)
        )
        shares = Counter(number for *_, number in heads[:limit])
        return [([name_of[tag] for tag in groups[number]], share) for number, share in shares.items()]

    def add_in(self, connection: Any, tasks: Sequence[Task], duplicates: Duplicates = RETURN) -> Sequence[str]:  # noqa: ARG002
        raise self._no_transaction()

    def now_in(self, connection: Any) -> float:  # noqa: ARG002
        raise self._no_transaction()

    def settle_in(self, connection: Any, settlement: Settlement) -> None:  # noqa: ARG002
        raise self._no_transaction()

    def _no_transaction(self) -> StorageError:
        why = "tasks in Redis share no transaction with anything else; use sqlite:/// or postgresql://"
        return StorageError(why, storage=self.name)

    async def find_claim(self, claim_id: str) -> Sequence[Task]:
        queues = await self._queues()
        answers = await self._run_each(scripts.FIND_CLAIM, [(queue, [claim_id]) for queue in queues])
        found = [task for queue, words in zip(queues, answers, strict=True) for task in self._tasks(queue, words)]
        return sorted(found, key=lambda task: (-task.priority, task.eta, task.id))

    async def renew(self, holds: Sequence[Hold], lease: float) -> Renewal:
        by_queue = await self._holds_by_queue(holds)
        calls = [
            (queue, [repr(float(lease)), *(word for hold in some for word in (hold.id, str(hold.attempt)))])
            for queue, some in by_queue.items()
        ]
        lost = set(holds) - {hold for some in by_queue.values() for hold in some}
        cancelled: set[Hold] = set()
        for some, answers in zip(by_queue.values(), await self._run_each(scripts.RENEW, calls), strict=True):
            lost.update(hold for hold, answer in zip(some, answers, strict=True) if answer == 0)
            cancelled.update(hold for hold, answer in zip(some, answers, strict=True) if answer == 2)
        return Renewal(frozenset(lost), frozenset(cancelled))

    async def _holds_by_queue(self, holds: Sequence[Hold]) -> dict[str, list[Hold]]:
        places = await self._find_queues((hold.id for hold in holds), held=True)
        by_queue: dict[str, list[Hold]] = {}
        for hold in holds:
            if hold.id in places:
                by_queue.setdefault(places[hold.id], []).append(hold)
        return by_queue

    async def note_progress(self, hold: Hold, progress: Progress) -> bool:
        for queue in await self._holds_by_queue([hold]):
            words = [hold.id, str(hold.attempt), msgspec.json.encode(progress)]
            return bool(await self._run(scripts.PROGRESS, queue, words))
        return False

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        rescued: Tasks = []
        queues = await self._queues_with(":running", "inf" if dead_workers else "")
        answers = await self._run_each(scripts.OVERDUE, [(queue, list(dead_workers)) for queue in queues])
        for queue, (moment, late) in zip(queues, answers, strict=True):
            settlements: list[Settlement] = []
            leases: dict[str, float | None] = {}
            for task in self._tasks(queue, late):
                if len(rescued) + len(settlements) >= limit:
                    break
                settlement = decide(task, float(moment))
                if settlement is not None:
                    settlements.append(settlement)
                    leases[task.id] = task.lease_until
                    self._remember({task.id: queue})
            if settlements:
                _, taken = await self._exchange(settlements, leases)
                rescued += taken
        return rescued

    # Waiting.

    async def wait_for_work(self, queues: Sequence[str], timeout: float) -> None:
        names = list(dict.fromkeys(queues))
        tags = [self._tag(name) for name in names]

        async def soonest() -> float | None:
            with told(self.name):
                link = await self._connected()
                answers = [await link.run(scripts.NEXT_WORK, some, []) for some in self._within_reach(tags)]
            return min((float(answer) for answer in answers if answer), default=None)

        await self._wait(self._listen_for_work, timeout, [WORK + name for name in names], soonest)

    async def wait_to_claim(
        self, queues: Sequence[str], timeout: float, *, worker: str, lease: float, claim_id: str
    ) -> Handed:
        if self.cluster:  # where nobody knows who listens at another node
            await self.wait_for_work(queues, timeout)
            return Handed()
        names = list(dict.fromkeys(queues))
        tags = [self._tag(name) for name in names]
        offer = pack((self._channel_of_claims, worker, lease, claim_id, tags))
        offered_at: float | None = None  # the first time; a claim is later than that

        async def soonest() -> float | None:
            nonlocal offered_at
            with told(self.name):
                link = await self._connected()
                moment, seconds = await link.run(scripts.OFFER, tags, [offer, repr(float(timeout))])
            offered_at = offered_at or float(moment)
            return float(seconds) if seconds else None

        notifications = [CLAIM + claim_id, *(WORK + name for name in names)]
        words = words_in(await self._wait(self._listen_for_work, timeout, notifications, soonest))
        if not words and offered_at is not None:
            with told(self.name):
                words = await (await self._connected()).run(scripts.WITHDRAW, tags, [offer, claim_id])
        claimed = tuple(self._changed(names, words))
        self._remember({task.id: task.queue for task in claimed})
        return Handed(claimed, (claimed[0].started_at or 0.0) - (offered_at or 0.0) if claimed else 0.0)

    async def wait_for_result(self, task_id: str, runs: int, timeout: float) -> Task | None:
        self._latest_is_awaited |= task_id == self._latest
        queue = (await self._find_queues([task_id])).get(task_id)
        if queue is None:
            return None
        there: Sequence[Any] = ()

        async def is_there() -> float | None:
            nonlocal there
            answer = await self._run(scripts.AWAIT, queue, [task_id, str(runs), self._channel_of_ends])
            there = answer or ()
            return None if answer == 0 else 0.0

        ear = await self._listening(self._listen_for_ends)
        foreseen = self._take_foreseen(task_id, ear)
        heard = foreseen or ear.expect([RESULT + task_id])
        try:
            news = await ear.wait(timeout, heard, is_there, look_first=foreseen is None)
        finally:
            ear.forget(heard)
        (task,) = self._tasks(queue, there or words_in(news)) or (None,)
        return task

    def _take_foreseen(self, task_id: str, ear: Ear) -> Heard | None:
        """What was to be heard of a task whose end was foreseen."""
        if self._foreseen is None or self._foreseen[:2] != (task_id, ear):
            return None
        _, _, heard = self._foreseen
        self._foreseen = None
        return heard

    async def _listen_for_work(self, begin: Callable[[], None], hear: Hear) -> None:
        link = await self._connected()
        await link.listen([self._channel, self._channel_of_claims], begin, hear)

    async def _listen_for_ends(self, begin: Callable[[], None], hear: Hear) -> None:
        link = await self._connected()
        await link.listen([f"{self._channel}:ends", self._channel_of_ends], begin, hear)

    # People.

    async def get(self, ids: Sequence[str]) -> Sequence[Task | None]:
        by_queue = await self._by_queue(ids)
        found: dict[str, Task] = {}
        for queue, words in zip(by_queue, await self._run_each(scripts.SHOW, list(by_queue.items())), strict=True):
            found |= {task.id: task for task in self._tasks(queue, words)}
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
        only_running = "1" if which.statuses == (RUNNING,) else "0"
        while len(found) < limit:
            page = self._tasks(queue, await self._run(scripts.LIST, queue, [str(PAGE), after or "", only_running]))
            found += [task for task in page if _fits(task, which)]
            if len(page) < PAGE:
                break
            after = page[-1].id
        return found[:limit]

    async def counts(self) -> Counts:
        queues = await self._queues()
        answers = await self._run_each(scripts.COUNT, [(queue, list(TaskStatus)) for queue in queues])
        counts = {}
        for queue, found in zip(queues, answers, strict=True):
            of_queue = {status: int(count) for status, count in zip(TaskStatus, found, strict=True) if int(count or 0)}
            if of_queue:
                counts[queue] = of_queue
        return counts

    async def cancel(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._change_each(scripts.CANCEL, ids)

    async def retry(self, ids: Sequence[str]) -> Sequence[Task]:
        return await self._change_each(scripts.RETRY, ids)

    async def _change_each(self, script: str, ids: Sequence[str]) -> Tasks:
        wanted = list(dict.fromkeys(ids))
        places = await self._find_queues(wanted)
        name_of = {self._tag(name): name for name in places.values()}
        changed: dict[str, Task] = {}
        with told(self.name):
            link = await self._connected()
            for tags in self._within_reach(list(name_of)) if name_of else ():
                names = [name_of[tag] for tag in tags]
                these = [(names.index(places[one]) + 1, one) for one in wanted if places.get(one) in names]
                answer = await link.run(script, tags, [pack((self._channel, these))])
                changed |= {task.id: task for task in self._changed(names, answer)}
        return [changed[one] for one in wanted if one in changed]

    def _changed(self, queues: Sequence[str], words: Sequence[Any]) -> Tasks:
        """What `change_each` has changed."""
        return [
            task
            for at in range(0, len(words), 7)
            for task in self._tasks(queues[int(words[at]) - 1], words[at + 1 : at + 7])
        ]

    async def change(self, ids: Sequence[str], move: Move) -> Sequence[Task]:
        now = await self.now()
        changed: dict[str, Task] = {}
        left = list(dict.fromkeys(ids))
        while left:
            moves: dict[str, list[tuple[Task, Task]]] = {}
            for before in await self.get(left):
                after = None if before is None else move(before, now)
                if before is not None and after is not None:
                    moves.setdefault(before.queue, []).append((before, after))
            left = []
            calls = [(queue, [self._channel, queue, *_changes(some)]) for queue, some in moves.items()]
            for some, answers in zip(moves.values(), await self._run_each(scripts.CHANGE, calls), strict=True):
                for (_, after), answer in zip(some, answers, strict=True):
                    if answer == 1:
                        changed[after.id] = after
                    elif answer == 0:  # it has moved meanwhile: look again
                        left.append(after.id)
        return [changed[task_id] for task_id in dict.fromkeys(ids) if task_id in changed]

    async def delete(self, ids: Sequence[str]) -> int:
        return sum(await self._run_each(scripts.DELETE, list((await self._by_queue(ids)).items())))

    # Moving tasks between stores.

    async def put(self, tasks: Sequence[Task]) -> frozenset[str]:
        there = await self._find_queues(task.id for task in tasks)
        by_queue: dict[str, list[Task]] = {}
        for task in tasks:
            if task.id not in there and task.status is not RUNNING:
                by_queue.setdefault(task.queue, []).append(task)
        if by_queue:
            await self._note_first(by_queue)
        calls = [(queue, [self._channel, queue, *_whole(given)]) for queue, given in by_queue.items()]
        return frozenset(task_id.decode() for kept in await self._run_each(scripts.PUT, calls) for task_id in kept)

    async def remove(self, tasks: Sequence[Task]) -> frozenset[str]:
        by_queue: dict[str, list[Task]] = {}
        for task in tasks:
            if task.status is not RUNNING:
                by_queue.setdefault(task.queue, []).append(task)
        calls = [
            (queue, [pack([_state_before(task) for task in given]), *map(body_of, given)])
            for queue, given in by_queue.items()
        ]
        gone = [task_id.decode() for some in await self._run_each(scripts.REMOVE, calls) for task_id in some]
        for task_id in gone:
            self._queue_of.pop(task_id, None)
        return frozenset(gone)

    # Upkeep.

    async def expire(self, *, limit: int) -> Sequence[Task]:
        late: Tasks = []
        for queue in await self._queues_with(":expiring"):
            if len(late) >= limit:
                break
            words = [self._channel, str(limit - len(late))]
            late += self._changed([queue], await self._run(scripts.EXPIRE, queue, words))
        return late

    async def prune(self, *, limit: int) -> int:
        count = 0
        for queue in await self._queues_with(":finished"):
            if count >= limit:
                break
            count += await self._run(scripts.PRUNE, queue, [str(limit - count)])
        return count

    # Workers, queues, limits.

    async def note_worker(self, record: WorkerRecord) -> None:
        seen = msgspec.structs.replace(record, seen_at=await self.now())
        with told(self.name):
            link = await self._connected()
            await link.run(scripts.NOTE, [f"{self.prefix}:workers"], [record.id, msgspec.json.encode(seen)])

    async def drop_worker(self, worker: str) -> None:
        await self._say("HDEL", f"{self.prefix}:workers", worker)

    async def workers(self) -> Sequence[WorkerRecord]:
        records = await self._say("HVALS", f"{self.prefix}:workers")
        return sorted(map(_decode_worker, records), key=lambda record: record.id)

    async def pause(self, queue: str) -> None:
        await self._note_first([queue])
        await self._run(scripts.LIMIT, queue, [self._channel, queue, "paused", "1"])

    async def resume(self, queue: str) -> None:
        await self._run(scripts.LIMIT, queue, [self._channel, queue, "paused", ""])

    async def paused(self) -> frozenset[str]:
        names = await self._queues()
        answers = await self._say_to_queues(names, "HEXISTS", "limits", "paused")
        return frozenset(name for name, is_paused in zip(names, answers, strict=True) if is_paused)

    async def set_limit(self, limit: Limit) -> None:
        terms = {
            "max_running": limit.max_running,
            "max_running_per_key": limit.max_running_per_key,
            "rate": None if limit.rate is None else repr(float(limit.rate)),
            "in_order": 1 if limit.in_order else None,
            "declared": 1 if limit.declared and limit.is_limit else None,
        }
        await self._note_first([limit.queue])
        given = [word for name, term in terms.items() for word in (name, "" if term is None else term)]
        await self._run(scripts.LIMIT, limit.queue, [self._channel, limit.queue, *given])

    async def limits(self) -> Sequence[Limit]:
        limits = []
        queues = await self._queues()
        terms = Limit.__struct_fields__[1:]
        for queue, words in zip(queues, await self._say_to_queues(queues, "HMGET", "limits", *terms), strict=True):
            most, per_key, rate, in_order, declared = words
            limit = Limit(
                queue=queue,
                max_running=None if most is None else int(most),
                max_running_per_key=None if per_key is None else int(per_key),
                rate=None if rate is None else float(rate),
                in_order=in_order is not None,
                declared=declared is not None,
            )
            limits += [limit] if limit.is_limit else []
        return limits


def _steps(tasks: Sequence[Task]) -> Iterator[Sequence[Task]]:
    """As many as a server can be busy with and nobody notices."""
    payloads = payloads_of(tasks)
    first = size = 0
    for place, payload in enumerate(payloads):
        if place > first and (place - first >= STEP or size + len(payload) > STEP_BYTES):
            yield part_of(tasks, first, place)
            first, size = place, 0
        size += len(payload)
    if first < len(payloads):
        yield part_of(tasks, first, len(payloads))


def _changes(moves: Sequence[tuple[Task, Task]]) -> list[bytes]:
    """What `CHANGE` wants after the queue: the changes, and the bodies that are others now."""
    changes, bodies = [], list[bytes]()
    for before, after in moves:
        body = body_of(after)
        is_new = body != body_of(before)
        bodies += [body] if is_new else []
        changes.append(change_of(before, after, 3 + len(bodies) if is_new else None))
    return [pack(changes), *bodies]


def _state_before(task: Task) -> tuple[str, str, int, float]:
    """What `REMOVE` wants."""
    return task.id, task.status.value, task.attempt, task.eta


def _whole(tasks: Sequence[Task]) -> list[str | bytes]:
    """What `PUT` wants after the queue."""
    return [
        word
        for task in tasks
        for word in (task.id, state_of(task), body_of(task), task.result or b"", pack(ids_followed(task)))
    ]


def _fits(task: Task, which: TaskFilter) -> bool:
    return (
        (which.queues is None or task.queue in which.queues)
        and (which.statuses is None or task.status in which.statuses)
        and (which.func_path is None or task.func_path == which.func_path)
        and (which.worker is None or task.worker == which.worker)
    )
