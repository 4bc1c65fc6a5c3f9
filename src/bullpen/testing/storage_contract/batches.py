"""Changing and counting all tasks that match a filter: each changes as it would by its id."""

from __future__ import annotations

from typing import Any

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import (
    CANCELLED,
    FAILED,
    FINAL,
    PENDING,
    RUNNING,
    SUCCESS,
    AttemptError,
    DependsOn,
    Task,
    cancel,
    fail,
    succeed,
)
from bullpen.tasks.storage.port import BatchVerb, ChangedTask, Limit, Storage, TaskFilter
from bullpen.testing.storage_contract.base import (
    FAR,
    StoreTests,
    added,
    claim,
    claimed_one,
    error_of,
    get,
    ids,
    new_task,
    new_tasks,
    settle,
)
from bullpen.testing.storage_contract.waiting import waits

VERBS: tuple[BatchVerb, ...] = ("cancel", "retry", "delete")
STATUSES = {"cancel": (PENDING, RUNNING), "retry": tuple(FINAL), "delete": tuple(FINAL)}
# The fields that may differ between two copies of a task.
_OWN = dict.fromkeys(("id", "queue", "claim_id", "next_task_id"), "") | dict.fromkeys(("depends_on", "lease_until"))
_INSTANTS = ("eta", "created_at", "started_at", "finished_at")


async def many_kinds(store: Storage, queue: str) -> list[Task]:
    """Tasks of every status: plain, with keys, in a chain, in a group, with limits in time."""
    final = await store.add(new_tasks(6, queue=queue, unique_scope="alive"))
    done, failed, gone, plain, _, _ = await claim(store, 6, queues=(queue,))
    await settle(store, succeed(done, b"1"), fail(failed, error_of(failed), 0.0), cancel(gone))
    taken = await claimed_one(store, queue=queue, unique_key="taken", priority=9)
    await settle(store, fail(taken, error_of(taken), 0.0))
    holder = await added(store, queue=queue, unique_key="taken", eta=await store.now() + FAR)
    keyed = await added(store, queue=queue, unique_key="free", concurrency_key="k", result_ttl=None, expires=4e9)
    first, second, third = new_tasks(3, queue=queue)
    first = replace(first, next_task_id=second.id)
    second = replace(second, depends_on=DependsOn(ids=(first.id,)), waits_for=1, next_task_id=third.id)
    third = replace(third, depends_on=DependsOn(ids=(second.id,)), waits_for=1)
    chain = await store.add([first, second, third])
    members, behind = new_tasks(2, queue=queue), new_task(queue=queue)
    behind = replace(behind, depends_on=DependsOn(ids=tuple(ids(members)), many=True), waits_for=2)
    group = await store.add([*(replace(one, next_task_id=behind.id) for one in members), behind])
    return [*final, plain, taken, holder, keyed, *chain, *group]


async def change_all(store: Storage, verb: BatchVerb, which: TaskFilter, limit: int = 3) -> list[ChangedTask]:
    changed: list[ChangedTask] = []
    cursor, matching = None, 0
    while True:
        batch = await store.change_batch(verb, which, limit=limit, cursor=cursor)
        assert batch.matching <= limit
        matching, cursor = matching + batch.matching, batch.cursor
        changed += batch.changed
        if cursor is None:
            assert len(changed) <= matching
            return changed


def alike(task: Task) -> Task:
    """To compare two copies: the instants are now or not."""
    instants = {name: None if (at := getattr(task, name)) is None else float(at > 2e9) for name in _INSTANTS}
    errors = tuple(replace(error, at=0.0, message="") for error in task.errors)
    own: dict[str, Any] = _OWN | instants | {"errors": errors}
    return replace(task, **own)


class BatchTests(StoreTests):
    @pytest.mark.parametrize("verb", VERBS)
    async def test_each_task_changes_as_by_its_id(self, store: Storage, verb: BatchVerb) -> None:
        if verb != "cancel":  # then the chain and the group are final, too
            for queue in ("one", "all"):
                await many_kinds(store, queue)
                running = await store.list(TaskFilter(queues=(queue,), statuses=(PENDING,)), limit=100)
                await store.cancel(ids(running))
        else:
            await many_kinds(store, "one")
            await many_kinds(store, "all")
        by_id = TaskFilter(queues=("one",), statuses=STATUSES[verb])
        matching = await store.list(by_id, limit=100)
        assert await store.count(replace(by_id, queues=("all",))) == len(matching)
        if verb == "delete":
            count = sum([await store.delete([task.id]) for task in matching])
        else:
            count = len(await (store.cancel if verb == "cancel" else store.retry)(ids(matching)))
        changed = await change_all(store, verb, TaskFilter(queues=("all",), statuses=STATUSES[verb]))
        left = [await store.list(TaskFilter(queues=(queue,)), limit=100) for queue in ("one", "all")]
        assert [alike(task) for task in left[1]] == [alike(task) for task in left[0]]
        assert {task.queue for task in changed} == {"all"}
        counts = await store.counts()
        assert dict(counts["one"]) == dict(counts["all"])
        if verb == "cancel":  # a batch of chains may be cut, and then counts those behind
            assert len(changed) >= count
        for task in changed:
            (found,) = await store.get([task.id])
            assert (found is None) == (verb == "delete")
            assert found is None or (found.attempt, found.status) == (task.attempt, task.status)

    async def test_tasks_are_found_by_key_header_and_a_part_of_their_name(self, store: Storage) -> None:
        unique = await added(store, unique_key="k", headers={"tenant": "acme", "x": '"y":"z"'})
        limited = await added(store, concurrency_key="k", func_path="shop.mail.send", headers={"tenant": "acme "})
        plain = await added(store, func_path="shop.resend", headers={"other": "acme", 'q"': "tenant"})
        umlaut = await added(store, func_path="shop.öffnen", queue="other")
        everything = [unique, limited, plain, umlaut]
        cases: list[tuple[dict[str, Any], list[Task]]] = [
            ({"key": "k"}, [unique, limited]),
            ({"key": "other"}, []),
            ({"header": ("tenant", "acme")}, [unique]),
            ({"header": ("x", '"y":"z"')}, [unique]),
            ({"header": ("y", "z")}, []),
            ({"header": ('q"', "tenant")}, [plain]),
            ({"func_path": "send"}, [unique, limited]),
            ({"func_path": "mail.send"}, [limited]),
            ({"func_path": "shop.mail.send"}, [limited]),
            ({"func_path": "end"}, []),
            ({"func_path": "öffnen"}, [umlaut]),
            ({"func_path": "send", "header": ("tenant", "acme "), "key": "k"}, [limited]),
        ]
        for fields, expected in cases:
            assert ids(await store.list(TaskFilter(**fields), limit=10)) == ids(expected), fields
            assert await store.count(TaskFilter(**fields)) == len(expected), fields
        assert ids(await store.list(TaskFilter(), limit=10)) == ids(everything)
        assert len(await change_all(store, "cancel", TaskFilter(header=("tenant", "acme")))) == 1
        assert len(await change_all(store, "cancel", TaskFilter(key="k"))) == 1
        assert len(await change_all(store, "cancel", TaskFilter(func_path="öffnen"))) == 1
        assert (await get(store, plain)).status is PENDING

    async def test_the_newest_come_first_on_request(self, store: Storage) -> None:
        tasks = [await added(store, queue=("a", "b")[number % 2]) for number in range(7)]
        expected = ids(tasks)[::-1]
        assert ids(await store.list(TaskFilter(), limit=3, newest=True)) == expected[:3]
        assert ids(await store.list(TaskFilter(), limit=3, newest=True, after=expected[2])) == expected[3:6]
        assert ids(await store.list(TaskFilter(), limit=3, newest=True, after=expected[5])) == expected[6:]
        assert ids(await store.list(TaskFilter(queues=("a",)), limit=2, newest=True)) == expected[:4:2]
        assert ids(await store.list(TaskFilter(ids=tuple(expected[:3])), limit=2, newest=True)) == expected[:2]
        running = ids(await claim(store, 4, queues=("a", "b")))
        found = await store.list(TaskFilter(statuses=(RUNNING,)), limit=3, newest=True)
        assert ids(found) == sorted(running, reverse=True)[:3]
        rest = await store.list(TaskFilter(statuses=(RUNNING,)), limit=3, newest=True, after=found[-1].id)
        assert ids(rest) == sorted(running)[:1]

    async def test_failures_are_found_by_their_fingerprint(self, store: Storage) -> None:
        first, second, third = [await claimed_one(store) for _ in range(3)]
        errors = [
            replace(error_of(first, '"fingerprint":"b'), fingerprint="a"),
            replace(error_of(second), fingerprint="b"),
            replace(error_of(third), fingerprint="a"),
        ]
        tasks = (first, second, third)
        await settle(store, *(fail(task, error, 0.5) for task, error in zip(tasks, errors, strict=True)))
        late = await added(store, expires=1.0)
        assert ids(await store.expire(limit=10)) == [late.id]
        for fingerprint, expected in (("a", [first, third]), ("b", [second]), ("expired", [late]), ("exception", [])):
            which = TaskFilter(statuses=(FAILED,), fingerprint=fingerprint)
            assert ids(await store.list(which, limit=10)) == ids(expected)
            assert await store.count(which) == len(expected)
        assert [one.id for one in await change_all(store, "retry", TaskFilter(fingerprint="a"))] == [first.id, third.id]
        assert [one.id for one in await change_all(store, "delete", TaskFilter(fingerprint="expired"))] == [late.id]
        assert ids(await store.list(TaskFilter(statuses=(FAILED,)), limit=10)) == [second.id]

    @pytest.mark.parametrize("length", [1, 31, 32, 255])
    async def test_a_filter_finds_the_tasks_of_a_function(self, store: Storage, length: int) -> None:
        name = "f" * length
        mine, other = await store.add(
            [new_task(func_path=name, payload=b'{"args":[1]}'), new_task(func_path=name[:-1] + "g")]
        )
        which = TaskFilter(func_path=name)
        assert await store.count(which) == 1
        for verb in VERBS:
            assert [one.id for one in await change_all(store, verb, which)] == [mine.id]
            if verb == "retry":
                await store.cancel([mine.id])
        assert ids(await store.list(TaskFilter(), limit=10)) == [other.id]

    @pytest.mark.parametrize("verb", VERBS)
    async def test_only_matching_tasks_change(self, store: Storage, verb: BatchVerb) -> None:
        await many_kinds(store, "default")
        await many_kinds(store, "other")
        before = {task.id: replace(task, lease_until=None) for task in await store.list(TaskFilter(), limit=100)}
        assert await change_all(store, verb, TaskFilter(queues=("none",))) == []
        assert await change_all(store, verb, TaskFilter(statuses=())) == []
        one = next(task for task in before.values() if task.status in STATUSES[verb] and task.next_task_id is None)
        changed = await change_all(store, verb, TaskFilter(ids=(one.id, "nobody"), statuses=STATUSES[verb]))
        assert [task.id for task in changed] == [one.id]
        after = {task.id: replace(task, lease_until=None) for task in await store.list(TaskFilter(), limit=100)}
        assert {key for key, task in before.items() if after.get(key) != task} == {one.id}

    async def test_a_filter_finds_errors_and_ages(self, store: Storage) -> None:
        start = await store.now()
        value, timeout, upstream = await store.add(new_tasks(3))
        await claim(store, 3)
        behind = replace(new_task(), depends_on=DependsOn(ids=("gone",)), waits_for=1)
        late = AttemptError(kind="timeout", attempt=1, at=1.5, type="app.errors.TooLate", message='"type":"ValueError"')
        await settle(store, fail(await get(store, value), error_of(value), 0.0))
        await settle(store, fail(await get(store, timeout), replace(late, type="app.errors.TooLate"), 0.0))
        member = replace(new_task(), next_task_id=behind.id)
        await store.add([member, replace(behind, depends_on=DependsOn(ids=(member.id,)))])
        await store.cancel([member.id])

        async def found(**which: Any) -> list[str]:
            listed = ids(await store.list(TaskFilter(**which), limit=100))
            assert await store.count(TaskFilter(**which)) == len(listed)
            return listed

        assert await found(error="ValueError") == [value.id]
        assert await found(error="exception") == [value.id]
        assert await found(error="timeout") == [timeout.id]
        assert await found(error="TooLate") == await found(error="app.errors.TooLate") == [timeout.id]
        assert await found(error="errors.TooLate") == await found(error="Late") == await found(error=".*") == []
        assert await found(error="upstream") == [behind.id]
        assert await found(error="ValueError", statuses=(SUCCESS,)) == []
        now = await store.now()
        everything = [value.id, timeout.id, upstream.id, behind.id, member.id]
        assert await found(until=now) == await found(since=start - 1) == sorted(everything)
        assert await found(since=now) == await found(until=start - 1) == []
        assert await found(since=now - FAR, until=now, error="timeout") == [timeout.id]
        assert [task.id for task in await change_all(store, "retry", TaskFilter(error="TooLate"))] == [timeout.id]
        ended = (await get(store, member)).finished_at
        assert ended is not None
        finished = {task.id for task in await store.list(TaskFilter(statuses=(FAILED, CANCELLED)), limit=9)}
        assert set(await found(until=ended, statuses=tuple(FINAL))) == finished

    async def test_a_retried_batch_wakes_a_worker(self, store: Storage) -> None:
        task = await claimed_one(store)
        await settle(store, succeed(task, None))
        async with waits(store.wait_for_work(["default"], FAR)):
            await change_all(store, "retry", TaskFilter())
        assert ids(await claim(store)) == [task.id]

    async def test_a_cancelled_batch_wakes_those_that_wait_for_results(self, store: Storage) -> None:
        task = await added(store)
        async with waits(store.wait_for_result(task.id, 0, FAR)):
            await change_all(store, "cancel", TaskFilter())

    async def test_a_cancelled_batch_makes_room_in_the_order_of_a_key(self, store: Storage) -> None:
        await store.set_limit(Limit(queue="default", in_order=True))
        first, second = await store.add(new_tasks(2, concurrency_key="k"))
        await store.add(new_tasks(1, queue="other"))
        await change_all(store, "cancel", TaskFilter(ids=(first.id,)))
        assert ids(await claim(store, 5)) == [second.id]

    async def test_an_unreadable_task_is_cancelled_and_deleted_but_not_retried(self, store: Storage) -> None:
        bad, good = await store.add(new_tasks(2))
        await self.damage(bad.id, "newer")
        assert {task.id for task in await change_all(store, "cancel", TaskFilter())} == {bad.id, good.id}
        assert [task.id for task in await change_all(store, "retry", TaskFilter())] == [good.id]
        assert (await get(store, bad)).status is CANCELLED
        assert [task.id for task in await change_all(store, "delete", TaskFilter(statuses=tuple(FINAL)))] == [bad.id]
