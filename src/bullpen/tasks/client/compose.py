"""Tasks that belong together: `chain`, `group`, and the calls that they are made of.

Nothing is enqueued until `enqueue`, and then all of it in one step. What a task waits for and what becomes of those
behind it is said in `tasks/model/links.py`, and done by the store.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.tasks.client.backend import CallPlan, NewBatch, NewTasks, QueueBackend
from bullpen.tasks.client.job import Job, job_in_task_exists
from bullpen.tasks.model.codec import LATER
from bullpen.tasks.model.options import TaskOptions
from bullpen.tasks.model.registry import TaskDefinition
from bullpen.tasks.model.task import DependsOn, Task
from bullpen.tasks.model.unique import RETURN, Duplicates
from bullpen.tasks.storage.port import SupportsCrossQueueLinks

R = TypeVar("R")

MOST = 10_000  # tasks in one chain or group
REJECT = Duplicates("reject")
REJECTED = ("delay", "eta", "interval", "cron", "debounce", "connection")


class _ResultPlaceholder:
    def __repr__(self) -> str:
        return "RESULT"

    def __reduce__(self) -> str:
        return "RESULT"


RESULT: Any = _ResultPlaceholder()
"""Stands for the result of the part before, among the arguments of a call: `parse.call(RESULT, strict=True)`. Behind a
group it is the list of the results, in the order of the group.
"""


class Call(Generic[R]):
    """One call of a task function, to be enqueued as part of a chain or a group, or by `current_task().enqueue`."""

    def __init__(
        self,
        backend: QueueBackend,
        definition: TaskDefinition,
        options: TaskOptions,
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
    ) -> None:
        places = [str(number) for number, value in enumerate(args) if value is RESULT]
        places += [name for name, value in kwargs.items() if value is RESULT]
        if len(places) > 1:
            raise InvalidOption("RESULT", f"{len(places)} times", "given at most once in a call")
        self.place = places[0] if places else ""
        known = [LATER if value is RESULT else value for value in args]
        named = {name: LATER if value is RESULT else value for name, value in kwargs.items()}
        self.payload = definition.codec.encode(known, named)
        keys = None if definition.keys is None else definition.keys.without(options)
        self.keys = {} if keys is None else keys.of_call(known, named)
        self.backend = backend
        self.name = definition.func_path
        self.options = options

    def enqueue(self) -> Job[R]:
        """Keep it for a worker."""
        with job_in_task_exists(self.backend):
            ((task_id, is_new),) = self.backend.add_blocking("enqueue", self._plan())
        return Job(self.backend, task_id, is_new=is_new)

    async def aenqueue(self) -> Job[R]:
        """`enqueue`, for async code."""
        with job_in_task_exists(self.backend):
            ((task_id, is_new),) = await self.backend.add(self._plan())
        return Job(self.backend, task_id, is_new=is_new)

    def _plan(self) -> CallPlan:
        if self.place:
            raise InvalidOption("RESULT", self.name, "given to a part that has another one before it")
        return CallPlan(self.options, self.name, [self.payload], [self.keys])

    def children(self, now: float, headers: Mapping[str, str]) -> tuple[Sequence[Task], Job[R]]:
        plan = _CompositionPlan([self])
        return plan.children(now, headers), plan.jobs()[-1]

    def __repr__(self) -> str:
        return f"<call of {self.name}>"


class ComposedJob(Job[R]):
    """The last task of a chain, or the callback of a group; `members` are all that it is made of, itself included."""

    __slots__ = ("members",)

    def __init__(self, backend: QueueBackend, members: Sequence[Job[Any]]) -> None:
        super().__init__(backend, members[-1].id, is_new=True)
        self.members = tuple(members)

    async def acancel(self) -> bool:
        """Cancel every task of it that is not finished."""
        storage = await self._backend.clients.get()
        return bool(await storage.cancel([job.id for job in self.members]))


class Chain(Generic[R]):
    """Steps that run one after the other."""

    def __init__(self, parts: Sequence[ChainPart], *, run_always: bool = False) -> None:
        self._size = len(_CompositionPlan(parts, run_always=run_always).nodes)  # raises for a wrong part
        self.parts = parts
        self.run_always = run_always

    def enqueue(self) -> ComposedJob[R]:
        """Keep all of it, in one step. Raises TaskExists, and keeps nothing, if a unique key in it is taken."""
        plan = _CompositionPlan(self.parts, run_always=self.run_always)
        return ComposedJob(plan.backend, plan.enqueue_blocking())

    async def aenqueue(self) -> ComposedJob[R]:
        """`enqueue`, for async code."""
        plan = _CompositionPlan(self.parts, run_always=self.run_always)
        return ComposedJob(plan.backend, await plan.enqueue())

    def children(self, now: float, headers: Mapping[str, str]) -> tuple[Sequence[Task], ComposedJob[R]]:
        plan = _CompositionPlan(self.parts, run_always=self.run_always)
        tasks = plan.children(now, headers)
        return tasks, ComposedJob(plan.backend, plan.jobs())

    def __repr__(self) -> str:
        return f"<chain of {self._size} tasks>"


class Group:
    """Tasks that may run at once."""

    def __init__(self, members: Sequence[Call[Any] | Chain[Any]]) -> None:
        for member in members:
            if not isinstance(member, Call | Chain):
                raise InvalidOptionType("group", member, "calls and chains: group(resize.call(path), …)")
        if not members:
            raise InvalidOption("group", "nothing", "of at least one task")
        self.members = members

    def then(self, callback: Call[R] | Chain[R], on_failure: Literal["cancel", "run"] = "cancel") -> Chain[R]:
        """Run `callback` when all are done. If one is not a success, the callback is cancelled; with
        `on_failure="run"` it runs when all are over, and gets None for the results that there are not.
        """
        if on_failure not in ("cancel", "run"):
            raise InvalidOption("on_failure", on_failure, "'cancel' or 'run'")
        return Chain([self, callback], run_always=on_failure == "run")

    def enqueue(self) -> list[Job[Any]]:
        """Keep all of them, in one step; the jobs of the members. Raises TaskExists as a chain does."""
        plan = _CompositionPlan([self])
        jobs = plan.enqueue_blocking()
        return [jobs[number] for number in plan.lasts]

    async def aenqueue(self) -> list[Job[Any]]:
        """`enqueue`, for async code."""
        plan = _CompositionPlan([self])
        jobs = await plan.enqueue()
        return [jobs[number] for number in plan.lasts]

    def children(self, now: float, headers: Mapping[str, str]) -> tuple[Sequence[Task], list[Job[Any]]]:
        plan = _CompositionPlan([self])
        tasks = plan.children(now, headers)
        jobs = plan.jobs()
        return tasks, [jobs[number] for number in plan.lasts]

    def __repr__(self) -> str:
        return f"<group of {len(self.members)}>"


ChainPart = Call[Any] | Chain[Any] | Group


def chain(*parts: ChainPart) -> Chain[Any]:
    """Run parts one after the other, each when the one before has succeeded; a group may come first.

    chain(fetch.call(url), parse.call(RESULT), save.call(RESULT, table="pages")).enqueue()
    """
    for part in parts:
        if not isinstance(part, Call | Chain | Group):
            raise InvalidOptionType("chain", part, "calls: chain(fetch.call(url), parse.call(RESULT))")
    if not parts:
        raise InvalidOption("chain", "nothing", "of at least one part")
    return Chain(parts)


def group(*members: Call[Any] | Chain[Any] | Iterable[Call[Any] | Chain[Any]]) -> Group:
    """Tasks that may run at once, given one by one or as an iterable.

    group(resize.call(path) for path in paths).then(report.call(RESULT)).enqueue()
    """
    flat: list[Any] = []
    for member in members:
        if isinstance(member, Call | Chain) or not isinstance(member, Iterable):
            flat.append(member)
        else:
            flat.extend(member)
    return Group(flat)


class _Node:
    """A call at its place."""

    __slots__ = ("after", "call", "id", "many", "next_node", "run_always")

    def __init__(self, call: Call[Any]) -> None:
        self.call = call
        self.after: list[int] = []
        self.next_node: int | None = None
        self.many = False
        self.run_always = False
        self.id = ""


class _CompositionPlan:
    """Calls in the order of their ids: each comes before the one that waits for it."""

    def __init__(self, parts: Sequence[ChainPart], *, run_always: bool = False) -> None:
        self.nodes: list[_Node] = []
        _, self.lasts = self._lay_chain(parts, run_always)
        self.backend = self.nodes[0].call.backend
        if len(self.nodes) > MOST:
            raise InvalidOption("chain", f"{len(self.nodes)} tasks", f"of at most {MOST} tasks")
        for node in self.nodes:
            self._check(node)
        self.options: Sequence[TaskOptions] = [node.call.options for node in self.nodes]
        self.connection = None

    def _lay(self, part: ChainPart) -> tuple[list[int], list[int]]:
        """Which of its calls begin it, and which end it."""
        if isinstance(part, Call):
            self.nodes.append(_Node(part))
            return [len(self.nodes) - 1], [len(self.nodes) - 1]
        if isinstance(part, Chain):
            return self._lay_chain(part.parts, part.run_always)
        ends = [self._lay(member) for member in part.members]
        return [one for first, _ in ends for one in first], [one for _, last in ends for one in last]

    def _lay_chain(self, parts: Sequence[ChainPart], run_always: bool) -> tuple[list[int], list[int]]:
        first, last = self._lay(parts[0])
        before = parts[0]
        for part in parts[1:]:
            begin, end = self._lay(part)
            if len(begin) != 1 or isinstance(part, Group):
                allowed = "a call or a chain; let the part before enqueue a group with current_task().enqueue"
                raise InvalidOption("part", part, allowed)
            node = self.nodes[begin[0]]
            node.after, node.many, node.run_always = last, isinstance(before, Group), run_always
            for number in last:
                self.nodes[number].next_node = begin[0]
            last, before = end, part
        return first, last

    def _check(self, node: _Node) -> None:
        call, options = node.call, node.call.options
        if node.after or node.next_node is not None:
            allowed = "left out in a chain or a group"
            for name in ("interval", "cron", "connection") if not node.after else REJECTED:
                if getattr(options, name) is not None:
                    why = "; a part begins when the one before is done" if name in ("delay", "eta") else ""
                    raise InvalidOption(name, getattr(options, name), allowed + why)
        if call.backend is not self.backend:
            raise InvalidOption("chain", call, "of functions of one queue object")

    def enqueue_blocking(self) -> list[Job[Any]]:
        with job_in_task_exists(self.backend):
            self.backend.add_blocking("enqueue", self)
        return self.jobs()

    async def enqueue(self) -> list[Job[Any]]:
        with job_in_task_exists(self.backend):
            await self.backend.add(self)
        return self.jobs()

    def new_tasks(self) -> list[NewTasks]:
        return [NewTasks(node.call.name, one.queue, dict(one.headers), 1) for node, one in self._with(self.options)]

    def tasks(self, options: Sequence[TaskOptions], now: float, new_ids: Callable[[int], Sequence[str]]) -> NewBatch:
        tasks = self._tasks(options, now, new_ids)
        is_unique = any(task.unique_key is not None for task in tasks)
        return NewBatch(tasks, [task.id for task in tasks], REJECT if is_unique else RETURN)

    def children(self, now: float, headers: Mapping[str, str]) -> list[Task]:
        """The tasks, to be added by the store when the attempt that enqueues them settles."""
        self._check_children()
        if headers:
            self.options = [msgspec.structs.replace(one, headers={**headers, **one.headers}) for one in self.options]
        return self.backend.make_children(self, now)

    def _with(self, options: Sequence[TaskOptions]) -> Iterable[tuple[_Node, TaskOptions]]:
        return zip(self.nodes, options, strict=True)

    def _tasks(self, options: Sequence[TaskOptions], now: float, new_ids: Callable[[int], Sequence[str]]) -> list[Task]:
        for node in self.nodes:  # only now, because a chain may be part of another
            if node.call.place and not node.after:
                raise InvalidOption("RESULT", node.call.name, "given to a part that has another one before it")
        for node, task_id in zip(self.nodes, new_ids(len(self.nodes)), strict=True):
            node.id = task_id
        return [self._task(node, of_call, now) for node, of_call in self._with(options)]

    def _check_children(self) -> None:
        storage = self.backend.clients.root
        if isinstance(storage, SupportsCrossQueueLinks):
            storage.check_reach(
                [node.call.options.queue for node in self.nodes if node.after or node.next_node is not None]
            )
        for node in self.nodes:
            options = node.call.options
            linked = node.after or node.next_node is not None
            if options.unique_key is not None and (linked or options.duplicates.policy != "return"):
                allowed = "left out here, or of a single call that returns the one that is there: nothing can reject it"
                raise InvalidOption("unique_key", options.unique_key, allowed)
            for name in ("interval", "cron", "connection"):
                if getattr(options, name) is not None:
                    raise InvalidOption(name, getattr(options, name), "left out in current_task().enqueue")

    def _task(self, node: _Node, options: TaskOptions, now: float) -> Task:
        task = options.new_task(node.id, node.call.name, node.call.payload, now)
        depends_on = None
        if node.after:
            ids = tuple(self.nodes[number].id for number in node.after)
            depends_on = DependsOn(ids=ids, place=node.call.place, many=node.many, run_always=node.run_always)
        next_task_id = None if node.next_node is None else self.nodes[node.next_node].id
        return msgspec.structs.replace(
            task, next_task_id=next_task_id, depends_on=depends_on, waits_for=len(node.after), **node.call.keys
        )

    def jobs(self) -> list[Job[Any]]:
        return [Job(self.backend, node.id, is_new=True) for node in self.nodes]
