"""Workers settle and claim tasks, renew their leases, report progress and take tasks back from dead workers."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import nullcontext

import msgspec

from bullpen.tasks.model.task import RUNNING, Progress, Settlement, Step, Task
from bullpen.tasks.storage.port import AttemptKey, Decide, Exchange, Renewal
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.adding import TaskAdding
from bullpen.tasks.storage.redis.client import are_ids
from bullpen.tasks.storage.redis.events import TaskEvents
from bullpen.tasks.storage.redis.failures import translated_errors
from bullpen.tasks.storage.redis.reading import ROW
from bullpen.tasks.storage.redis.rows import NEW_STATE, body_of, new_task, pack, settlement_of, step_of, task_of

CLAIMED_ROW = 7  # values of a task that `exchange.lua` has claimed: the number of its queue, its id, …


class TaskClaiming(TaskAdding, TaskEvents):
    """The verbs of workers, except waiting."""

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
        awaited = {one.awaits for one in settlements if one.suspended and one.awaits} if self.cluster else ()
        async with self._looking_afterwards(awaited) if awaited else nullcontext():
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
    ) -> tuple[Exchange, list[Task]]:
        """`leases`: by id, the lease that a task must still have to be settled. Also returns the tasks settled so."""
        places = await self._find_queues((one.id for one in settlements), held=True) if settlements else {}
        wanted = list(dict.fromkeys(queues)) if limit > 0 else []
        of_children = [child.queue for one in settlements for child in one.children]
        names = list(dict.fromkeys([*wanted, *places.values(), *of_children]))
        if len(self._within_reach([self._tag(name) for name in names])) > 1:
            return await self._exchange_apart(settlements, places, leases, worker, wanted, limit, lease, claim_id)
        if of_children:
            await self._list_first(of_children)
        numbers = {name: number for number, name in enumerate(names, start=1)}
        rejected = {AttemptKey(one.id, one.attempt) for one in settlements if one.id not in places}
        if not names:
            return Exchange((), frozenset(rejected)), []
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
            self._events,
        )
        with translated_errors(self.name):
            connection = await self._connected()
            tags = [self._tag(name) for name in names]
            answer = await connection.run(scripts.EXCHANGE, tags, [pack(ask), *words], once=True)
        if of_children:
            await self._list_again(of_children)
        denied, until, claimed, taken = answer
        rejected.update(AttemptKey(denied[at].decode(), int(denied[at + 1])) for at in range(0, len(denied), 2))
        lease_until = float(until)
        rows = [claimed[at : at + CLAIMED_ROW] for at in range(0, len(claimed), CLAIMED_ROW)]
        if not are_ids(claimed[1::CLAIMED_ROW]):
            rows = [row for row in rows if not await self._gave_names(names[row[0] - 1], row[1:2])]
        tasks = [task_of(names[number - 1], lease_until, *stored) for number, *stored in rows]
        self._remember({task.id: task.queue for task in tasks})
        after = [task for number, shown in taken for task in self._tasks(names[number - 1], shown)]
        return Exchange(tuple(tasks), frozenset(rejected)), after

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
    ) -> tuple[Exchange, list[Task]]:
        """Exchange with several nodes of a cluster, which share no script: first settle, then claim."""
        rejected = {AttemptKey(one.id, one.attempt) for one in settlements if one.id not in places}
        by_queue: dict[str, list[Settlement]] = {}
        for one in settlements:
            if one.id in places:
                by_queue.setdefault(places[one.id], []).append(one)
        after: list[Task] = []
        for queue, some in by_queue.items():
            exchange, settled = await self._settle_apart(queue, some, leases)
            rejected |= exchange.rejected
            after += settled
        claimed: list[Task] = []
        if wanted and limit > 0:
            for some_queues, share in await self._shares(wanted, limit):
                exchange, _ = await self._exchange([], {}, worker, some_queues, share, lease, claim_id)
                claimed += exchange.claimed
        claimed.sort(key=lambda task: (-task.priority, task.eta, task.id))
        return Exchange(tuple(claimed), frozenset(rejected)), after

    async def _settle_apart(
        self, queue: str, settlements: Sequence[Settlement], leases: dict[str, float | None]
    ) -> tuple[Exchange, list[Task]]:
        """Settle tasks of one node. If the attempt holds its task, its children on other nodes are added before."""
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
                self.check_reach([child.queue for child in one.children if child.depends_on or child.next_task_id])
                await self.add(far)
            here.append(msgspec.structs.replace(one, children=tuple(near)))
        self._remember({one.id: queue for one in here})
        return await self._exchange(here, leases)

    async def _shares(self, queues: Sequence[str], limit: int) -> list[tuple[list[str], int]]:
        """How many tasks to claim from each node, to get the first ones of all nodes."""
        name_of = {self._tag(name): name for name in queues}
        groups = self._within_reach(list(name_of))
        with translated_errors(self.name):
            connection = await self._connected()
            peeks = [await connection.run(scripts.PREVIEW_CLAIM, tags, [str(limit)]) for tags in groups]
        heads = sorted(
            (-peek[at], float(peek[at + 1]), peek[at + 2], number)
            for number, peek in enumerate(peeks)
            for at in range(0, len(peek), 3)
        )
        shares = Counter(number for *_, number in heads[:limit])
        return [([name_of[tag] for tag in groups[number]], share) for number, share in shares.items()]

    async def renew(self, holds: Sequence[AttemptKey], lease: float) -> Renewal:
        by_queue = await self._holds_by_queue(holds)
        calls = [
            (queue, [repr(float(lease)), *(word for hold in some for word in (hold.id, str(hold.attempt)))])
            for queue, some in by_queue.items()
        ]
        lost = set(holds) - {hold for some in by_queue.values() for hold in some}
        cancelled: set[AttemptKey] = set()
        for some, answers in zip(by_queue.values(), await self._run_each(scripts.RENEW_LEASES, calls), strict=True):
            lost.update(hold for hold, answer in zip(some, answers, strict=True) if answer == 0)
            cancelled.update(hold for hold, answer in zip(some, answers, strict=True) if answer == 2)
        return Renewal(frozenset(lost), frozenset(cancelled))

    async def _holds_by_queue(self, holds: Sequence[AttemptKey]) -> dict[str, list[AttemptKey]]:
        places = await self._find_queues((hold.id for hold in holds), held=True)
        by_queue: dict[str, list[AttemptKey]] = {}
        for hold in holds:
            if hold.id in places:
                by_queue.setdefault(places[hold.id], []).append(hold)
        return by_queue

    async def note_progress(self, hold: AttemptKey, progress: Progress) -> bool:
        for queue in await self._holds_by_queue([hold]):
            words = [hold.id, str(hold.attempt), msgspec.json.encode(progress)]
            return bool(await self._run(scripts.SAVE_PROGRESS, queue, words))
        return False

    async def save_step(self, hold: AttemptKey, step: Step) -> bool:
        for queue in await self._holds_by_queue([hold]):
            words = [hold.id, str(hold.attempt), step.name, step_of(step)]
            return bool(await self._run(scripts.SAVE_STEP, queue, words))
        return False

    async def rescue_expired(self, decide: Decide, *, limit: int, dead_workers: Sequence[str] = ()) -> Sequence[Task]:
        rescued: list[Task] = []
        queues = await self._queues_with(":running", "inf")
        answers = await self._run_each(scripts.FIND_LOST, [(queue, list(dead_workers)) for queue in queues])
        for queue, (now, late) in zip(queues, answers, strict=True):
            settlements: list[Settlement] = []
            leases: dict[str, float | None] = {}
            if await self._gave_names(queue, late[::ROW]):
                continue
            for task in self._tasks(queue, late):
                if len(rescued) + len(settlements) >= limit:
                    break
                settlement = decide(task, float(now))
                if settlement is not None:
                    settlements.append(settlement)
                    leases[task.id] = task.lease_until
                    self._remember({task.id: queue})
            if settlements:
                _, taken = await self._exchange(settlements, leases)
                rescued += taken
        return rescued
