"""Tasks that belong together: `chain`, `group`, and the calls that they are made of.

Nothing is enqueued until `enqueue`, and then all of it in one step. What a task waits for and what becomes of those
behind it is said in `tasks/links.py`, and done by the store.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Generic, Literal, TypeVar

import msgspec

from bullpen import primitives
from bullpen.errors import InvalidOption, InvalidOptionType
from bullpen.queue.job import Job
from bullpen.queue.new_tasks import NewTasks
from bullpen.queue.rejecting import rejecting
from bullpen.queue.store import Store
from bullpen.storage.port import HasReach
from bullpen.tasks.codec import LATER
from bullpen.tasks.options import TaskOptions
from bullpen.tasks.registry import TaskDefinition
from bullpen.tasks.task import Follows, Task
from bullpen.tasks.unique import RETURN, Duplicates

R = TypeVar("R")

MOST = 10_000  # tasks in one chain or group
REJECT = Duplicates("reject")
REFUSED = ("delay", "eta", "interval", "cron", "debounce", "connection")


class _Result:
    def __repr__(self) -> str:
        return "RESULT"

    def __reduce__(self) -> str:
        return "RESULT"


RESULT: Any = _Result()
"""Stands for the result of the step before, among the arguments of a call: `parse.call(RESULT, strict=True)`. Behind a
group it is the list of the results, in the order of the group.
"""


class Call(Generic[R]):
    """One call of a task function, to be enqueued as part of a chain or a group, or by `current_task().enqueue`."""

    def __init__(
        self,
        store: Store,
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
        self.store = store
        self.name = definition.func_path
        self.options = options

    def enqueue(self) -> Job[R]:
        """Keep it for a worker."""
        return self.store.run("enqueue", self.aenqueue(), connection=self.options.connection)

    async def aenqueue(self) -> Job[R]:
        """`enqueue`, for async code."""
        if self.place:
            raise InvalidOption("RESULT", self.name, "given to a step that has another one before it")
        with rejecting(self.store):
            ((task_id, is_new),) = await self.store.add(self.options, self.name, [self.payload], [self.keys])
        return Job(self.store, task_id, is_new=is_new)

    def children(self, now: float) -> tuple[Sequence[Task], Job[R]]:
        plan = _Plan([self])
        return plan.tasks(now, as_children=True), plan.jobs()[-1]

    def __repr__(self) -> str:
        return f"<call of {self.name}>"


class ComposedJob(Job[R]):
    """The last task of a chain, or the callback of a group; `members` are all that it is made of, itself included."""

    __slots__ = ("members",)

    def __init__(self, store: Store, members: Sequence[Job[Any]]) -> None:
        super().__init__(store, members[-1].id, is_new=True)
        self.members = tuple(members)

    async def acancel(self) -> bool:
        """Cancel whatever of it is not over."""
        storage = await self._store.clients.get()
        return bool(await storage.cancel([job.id for job in self.members]))


class Chain(Generic[R]):
    """Steps that run one after the other."""

    def __init__(self, steps: Sequence[Step], *, anyway: bool = False) -> None:
        self._size = len(_Plan(steps, anyway=anyway).nodes)  # what is wrong is said at once
        self.steps = steps
        self.anyway = anyway

    def enqueue(self) -> ComposedJob[R]:
        """Keep all of it, in one step. Raises TaskExists, and keeps nothing, if a unique key in it is taken."""
        return _Plan(self.steps).store.run("enqueue", self.aenqueue())

    async def aenqueue(self) -> ComposedJob[R]:
        """`enqueue`, for async code."""
        plan = _Plan(self.steps, anyway=self.anyway)
        return ComposedJob(plan.store, await plan.enqueue())

    def children(self, now: float) -> tuple[Sequence[Task], ComposedJob[R]]:
        plan = _Plan(self.steps, anyway=self.anyway)
        tasks = plan.tasks(now, as_children=True)
        return tasks, ComposedJob(plan.store, plan.jobs())

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
        return Chain([self, callback], anyway=on_failure == "run")

    def enqueue(self) -> list[Job[Any]]:
        """Keep all of them, in one step; the jobs of the members. Raises TaskExists as a chain does."""
        return _Plan([self]).store.run("enqueue", self.aenqueue())

    async def aenqueue(self) -> list[Job[Any]]:
        """`enqueue`, for async code."""
        plan = _Plan([self])
        jobs = await plan.enqueue()
        return [jobs[number] for number in plan.lasts]

    def children(self, now: float) -> tuple[Sequence[Task], list[Job[Any]]]:
        plan = _Plan([self])
        tasks = plan.tasks(now, as_children=True)
        jobs = plan.jobs()
        return tasks, [jobs[number] for number in plan.lasts]

    def __repr__(self) -> str:
        return f"<group of {len(self.members)}>"


Step = Call[Any] | Chain[Any] | Group


def chain(*steps: Step) -> Chain[Any]:
    """Run steps one after the other, each when the one before has succeeded; a group may come first.

    chain(fetch.call(url), parse.call(RESULT), save.call(RESULT, table="pages")).enqueue()
    """
    for step in steps:
        if not isinstance(step, Call | Chain | Group):
            raise InvalidOptionType("chain", step, "calls: chain(fetch.call(url), parse.call(RESULT))")
    if not steps:
        raise InvalidOption("chain", "nothing", "of at least one step")
    return Chain(steps)


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

    __slots__ = ("after", "anyway", "call", "id", "many", "then")

    def __init__(self, call: Call[Any]) -> None:
        self.call = call
        self.after: list[int] = []
        self.then: int | None = None
        self.many = False
        self.anyway = False
        self.id = ""


class _Plan:
    """Calls in the order of their ids: each comes before the one that waits for it."""

    def __init__(self, steps: Sequence[Step], *, anyway: bool = False) -> None:
        self.nodes: list[_Node] = []
        _, self.lasts = self._lay_chain(steps, anyway)
        self.store = self.nodes[0].call.store
        if len(self.nodes) > MOST:
            raise InvalidOption("chain", f"{len(self.nodes)} tasks", f"of at most {MOST} tasks")
        for node in self.nodes:
            self._check(node)

    def _lay(self, step: Step) -> tuple[list[int], list[int]]:
        """Which of its calls begin it, and which end it."""
        if isinstance(step, Call):
            self.nodes.append(_Node(step))
            return [len(self.nodes) - 1], [len(self.nodes) - 1]
        if isinstance(step, Chain):
            return self._lay_chain(step.steps, step.anyway)
        ends = [self._lay(member) for member in step.members]
        return [one for first, _ in ends for one in first], [one for _, last in ends for one in last]

    def _lay_chain(self, steps: Sequence[Step], anyway: bool) -> tuple[list[int], list[int]]:
        first, last = self._lay(steps[0])
        before = steps[0]
        for step in steps[1:]:
            begin, end = self._lay(step)
            if len(begin) != 1 or isinstance(step, Group):
                allowed = "a call or a chain; let the step before enqueue a group with current_task().enqueue"
                raise InvalidOption("step", step, allowed)
            node = self.nodes[begin[0]]
            node.after, node.many, node.anyway = last, isinstance(before, Group), anyway
            for number in last:
                self.nodes[number].then = begin[0]
            last, before = end, step
        return first, last

    def _check(self, node: _Node) -> None:
        call, options = node.call, node.call.options
        if node.after or node.then is not None:
            allowed = "left out in a chain or a group"
            for name in ("interval", "cron", "connection") if not node.after else REFUSED:
                if getattr(options, name) is not None:
                    why = "; a step begins when the one before is done" if name in ("delay", "eta") else ""
                    raise InvalidOption(name, getattr(options, name), allowed + why)
        if call.store is not self.store:
            raise InvalidOption("chain", call, "of functions of one queue object")

    async def enqueue(self) -> list[Job[Any]]:
        options = [node.call.options for node in self.nodes]
        if self.store.registry.hooks.around_enqueue:
            news = [NewTasks(node.call.name, one.queue, dict(one.headers), 1) for node, one in self._with(options)]
            await self.store.surround(news, options, self._keep)
        else:
            await self._keep(options)
        return self.jobs()

    async def _keep(self, options: Sequence[TaskOptions]) -> list[list[str]]:
        """In one step."""
        storage = await self.store.clients.get()
        now = await storage.now() if any(one.is_relative for one in options) else 0.0
        tasks = self.tasks(now, options=options)
        is_unique = any(task.unique_key is not None for task in tasks)
        primitives.failpoint("enqueue.before_add")
        with rejecting(self.store):
            kept = await storage.add(tasks, REJECT if is_unique else RETURN)
        primitives.failpoint("enqueue.after_add")
        for task in kept:
            self.store.watch.enqueued(task)
        return [[task.id] for task in tasks]

    def _with(self, options: Sequence[TaskOptions]) -> Iterable[tuple[_Node, TaskOptions]]:
        return zip(self.nodes, options, strict=True)

    def tasks(
        self, now: float, *, as_children: bool = False, options: Sequence[TaskOptions] | None = None
    ) -> list[Task]:
        for node in self.nodes:  # only now, for a chain may be part of another
            if node.call.place and not node.after:
                raise InvalidOption("RESULT", node.call.name, "given to a step that has another one before it")
        if as_children:
            self._check_children()
        for node, task_id in zip(self.nodes, self.store.new_ids(len(self.nodes)), strict=True):
            node.id = task_id
        given = options or [node.call.options for node in self.nodes]
        return [self._task(node, of_call, now) for node, of_call in self._with(given)]

    def _check_children(self) -> None:
        storage = self.store.clients.root
        if isinstance(storage, HasReach):
            storage.check_reach([node.call.options.queue for node in self.nodes if node.after or node.then is not None])
        for node in self.nodes:
            options = node.call.options
            linked = node.after or node.then is not None
            if options.unique_key is not None and (linked or options.duplicates.policy != "return"):
                allowed = "left out here, or of a single call that returns the one that is there: nothing can refuse it"
                raise InvalidOption("unique_key", options.unique_key, allowed)
            for name in ("interval", "cron", "connection"):
                if getattr(options, name) is not None:
                    raise InvalidOption(name, getattr(options, name), "left out in current_task().enqueue")

    def _task(self, node: _Node, options: TaskOptions, now: float) -> Task:
        task = options.new_task(node.id, node.call.name, node.call.payload, now)
        follows = None
        if node.after:
            ids = tuple(self.nodes[number].id for number in node.after)
            follows = Follows(ids=ids, place=node.call.place, many=node.many, anyway=node.anyway)
        then = None if node.then is None else self.nodes[node.then].id
        return msgspec.structs.replace(task, then=then, follows=follows, waits_for=len(node.after), **node.call.keys)

    def jobs(self) -> list[Job[Any]]:
        return [Job(self.store, node.id, is_new=True) for node in self.nodes]
