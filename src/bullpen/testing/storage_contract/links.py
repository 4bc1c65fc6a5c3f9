"""Tasks that wait for others, and tasks that come with the success of another: whatever ends one is one step."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
from msgspec.structs import replace

from bullpen.tasks.model.task import (
    CANCELLED,
    FAILED,
    NEVER,
    PENDING,
    RUNNING,
    SUCCESS,
    DependsOn,
    Settlement,
    Task,
    TaskStatus,
    cancel,
    crash,
    fail,
    fail_permanently,
    release,
    succeed,
)
from bullpen.tasks.model.unique import Duplicates
from bullpen.tasks.storage.port import AttemptKey, Storage, TaskFilter
from bullpen.testing.storage_contract.base import (
    A_MOMENT,
    FAR,
    Span,
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
    take_back,
)
from bullpen.testing.storage_contract.waiting import waits


async def new_chain(store: Storage, length: int = 3, **fields: Any) -> list[Task]:
    tasks = new_tasks(length, **fields)
    for number in range(1, length):
        tasks[number - 1] = replace(tasks[number - 1], next_task_id=tasks[number].id)
        tasks[number] = replace(
            tasks[number], depends_on=DependsOn(ids=(tasks[number - 1].id,), place="0"), waits_for=1
        )
    return list(await store.add(tasks))


async def new_group(store: Storage, size: int = 3, *, run_always: bool = False, **fields: Any) -> list[Task]:
    """The members, and last the one that waits for them."""
    members = new_tasks(size, **fields)
    depends_on = DependsOn(ids=tuple(ids(members)), many=True, run_always=run_always)
    last = new_task(depends_on=depends_on, waits_for=size, **fields)
    return list(await store.add([*(replace(member, next_task_id=last.id) for member in members), last]))


async def statuses(store: Storage, tasks: list[Task]) -> list[TaskStatus]:
    return [(await get(store, task)).status for task in tasks]


ENDINGS: dict[str, tuple[Callable[[Task], Settlement], TaskStatus]] = {
    "succeeds": (lambda task: succeed(task, b"1"), SUCCESS),
    "fails": (lambda task: fail(task, error_of(task), 0.0), FAILED),
    "fails permanently": (lambda task: fail_permanently(task, error_of(task)), FAILED),
    "cancels itself": (cancel, CANCELLED),
    "crashes too often": (lambda task: crash(replace(task, crashes=10), error_of(task)), FAILED),
}


class LinkTests(StoreTests):
    async def test_one_that_is_replaced_follows_whom_it_followed(self, store: Storage) -> None:
        first, last = new_tasks(1)[0], new_task(unique_key="k")
        depends_on = DependsOn(ids=(first.id,), place="0", many=True, run_always=True)
        await store.add([replace(first, next_task_id=last.id), replace(last, depends_on=depends_on, waits_for=1)])
        (kept,) = await store.add([new_task(unique_key="k", payload=b"[2]")], Duplicates("replace"))
        assert (kept.id, kept.payload, kept.depends_on, kept.waits_for) == (last.id, b"[2]", depends_on, 1)
        assert (await get(store, last)).depends_on == depends_on

    async def test_links_come_back_as_they_were_given(self, store: Storage) -> None:
        first, last = await new_chain(store, 2)
        assert (first.next_task_id, first.depends_on, first.waits_for) == (last.id, None, 0)
        assert (last.next_task_id, last.waits_for, last.eta) == (None, 1, NEVER)
        assert last.depends_on == DependsOn(ids=(first.id,), place="0")
        assert list(await store.get([first.id, last.id])) == [first, last]
        group = await new_group(store, 40, run_always=True, queue="many")
        assert list(await store.get(ids(group))) == group

    async def test_a_caller_that_waits_for_the_last_task_of_a_chain_gets_it(self, store: Storage) -> None:
        first, last = await new_chain(store, 2)
        (task,) = await claim(store)
        (task,) = await claim(store, 1, succeed(task, b"1"))
        async with waits(store.wait_for_result(last.id, 0, FAR)) as waiting:
            await settle(store, succeed(task, b"2"))
        kept = await get(store, last)
        assert kept.depends_on == DependsOn(ids=(first.id,), place="0")
        assert waiting.result() in (None, kept)

    async def test_a_task_that_depends_on_another_is_not_claimed(self, store: Storage) -> None:
        first, *_ = await new_chain(store)
        assert ids(await claim(store, 10)) == [first.id]
        assert await claim(store, 10) == []

    async def test_a_chain_goes_on_step_by_step(self, store: Storage) -> None:
        chain = await new_chain(store)
        (mine,) = await claim(store, 10)
        for following in chain[1:]:
            async with Span(store) as span:
                (mine,) = await claim(store, 10, succeed(mine, b"1"))
            assert mine.id == following.id
            assert mine.waits_for == 0
            assert mine.eta in span
        await settle(store, succeed(mine, None))
        assert await statuses(store, chain) == [SUCCESS] * 3

    async def test_a_chain_may_lead_through_several_queues(self, store: Storage) -> None:
        first, second = new_task(queue="a"), new_task(queue="b")
        second = replace(second, depends_on=DependsOn(ids=(first.id,)), waits_for=1)
        await store.add([replace(first, next_task_id=second.id), second])
        (mine,) = await claim(store, 5, queues=("a", "b"))
        assert ids(await claim(store, 5, succeed(mine, None), queues=("b",))) == [second.id]

    async def test_a_try_that_fails_is_no_end(self, store: Storage) -> None:
        _, second = await new_chain(store, 2, max_retries=1)
        (mine,) = await claim(store)
        await settle(store, fail(mine, error_of(mine), 0.0, after=0.0))
        (mine,) = await claim(store, 5)
        await settle(store, release(mine))
        assert (await get(store, second)).waits_for == 1
        (mine,) = await claim(store, 5)
        assert ids(await claim(store, 5, succeed(mine, None))) == [second.id]

    async def test_a_group_is_done_when_all_are(self, store: Storage) -> None:
        *members, last = await new_group(store, 4)
        mine = await claim(store, 10)
        assert ids(mine) == ids(members)
        await settle(store, succeed(mine[2], b"2"))
        await settle(store, succeed(mine[0], b"0"), succeed(mine[3], b"3"))
        assert (await get(store, last)).waits_for == 1
        assert await claim(store, 10) == []
        assert ids(await claim(store, 10, succeed(mine[1], b"1"))) == [last.id]

    async def test_a_second_write_of_one_end_counts_once(self, store: Storage) -> None:
        *_, last = await new_group(store, 3)
        mine = await claim(store, 10)
        done = succeed(mine[0], b"0")
        assert await settle(store, done) == frozenset()
        assert await settle(store, done) == {AttemptKey(mine[0].id, 1)}
        await settle(store, succeed(mine[1], b"1"), succeed(mine[1], b"1"))
        assert (await get(store, last)).waits_for == 1

    @pytest.mark.parametrize("ending", [name for name in ENDINGS if name != "succeeds"])
    async def test_a_task_whose_predecessor_failed_is_cancelled_and_all_tasks_behind_it(
        self, store: Storage, ending: str
    ) -> None:
        end, status = ENDINGS[ending]
        first, *others = await new_chain(store, 4)
        (mine,) = await claim(store)
        async with Span(store) as span:
            await settle(store, end(mine))
        assert (await get(store, first)).status is status
        for before, task in zip([first, *others], others, strict=False):
            after = await get(store, task)
            assert (after.status, after.attempt) == (CANCELLED, 0)
            assert after.finished_at in span
            assert after.error is not None
            assert after.error.kind == "upstream"
            assert before.id in after.error.message
        assert await store.counts() == (
            {"default": {CANCELLED: 4}} if status is CANCELLED else {"default": {CANCELLED: 3, status: 1}}
        )

    async def test_what_people_cancel_takes_those_behind_it_along(self, store: Storage) -> None:
        chain = await new_chain(store, 4)
        assert ids(await store.cancel([chain[1].id])) == [chain[1].id]
        assert await statuses(store, chain) == [PENDING, CANCELLED, CANCELLED, CANCELLED]
        (mine,) = await claim(store, 5)
        await settle(store, succeed(mine, None))
        assert await claim(store, 5) == []

    async def test_those_that_people_cancel_are_so_in_the_order_they_are_given(self, store: Storage) -> None:
        chain = [new_task(queue=queue) for queue in ("a", "b", "a")]
        chain = [replace(task, next_task_id=behind.id) for task, behind in pairwise(chain)] + chain[-1:]
        chain[1:] = [
            replace(task, depends_on=DependsOn(ids=(before.id,)), waits_for=1) for before, task in pairwise(chain)
        ]
        await store.add(chain)
        first, second, third = ids(chain)
        assert ids(await store.cancel([third, first, second])) == [third, first]
        errors = [(await get(store, task)).error for task in chain]
        assert [None if error is None else error.kind for error in errors] == [None, "upstream", None]

    async def test_a_task_is_shown_as_it_was_when_people_cancelled_it(self, store: Storage) -> None:
        first, second, last = await new_group(store, 2, run_always=True)
        assert [task.waits_for for task in await store.cancel([first.id, last.id, second.id])] == [0, 1, 0]
        assert (await get(store, last)).waits_for == 1

    async def test_one_that_is_asked_to_stop_takes_those_behind_it_along(self, store: Storage) -> None:
        first, second = await new_chain(store, 2, max_retries=3)
        (mine,) = await claim(store)
        await store.cancel([first.id])
        assert (await get(store, second)).status is PENDING
        await settle(store, fail(mine, error_of(mine), 0.0))  # its worker had not heard
        assert await statuses(store, [first, second]) == [CANCELLED, CANCELLED]

    async def test_one_that_is_not_started_in_time_takes_those_behind_it_along(self, store: Storage) -> None:
        chain = new_tasks(2)
        first = replace(chain[0], next_task_id=chain[1].id, expires=await store.now() - 1.0)
        await store.add([first, replace(chain[1], depends_on=DependsOn(ids=(first.id,)), waits_for=1)])
        assert ids(await store.expire(limit=10)) == [first.id]
        assert await statuses(store, chain) == [FAILED, CANCELLED]

    async def test_one_whose_worker_died_too_often_takes_those_behind_it_along(self, store: Storage) -> None:
        chain = await new_chain(store, 3)
        for _ in range(3):
            assert len(await claim(store, 5, lease=0.0)) == 1
            assert len(await store.rescue_expired(take_back, limit=10)) == 1
        assert await statuses(store, chain) == [FAILED, CANCELLED, CANCELLED]

    async def test_one_that_waits_may_be_too_late_itself(self, store: Storage) -> None:
        chain = new_tasks(3)
        chain[0] = replace(chain[0], next_task_id=chain[1].id)
        soon = await store.now() - 1.0
        chain[1] = replace(
            chain[1], depends_on=DependsOn(ids=(chain[0].id,)), waits_for=1, next_task_id=chain[2].id, expires=soon
        )
        chain[2] = replace(chain[2], depends_on=DependsOn(ids=(chain[1].id,)), waits_for=1)
        await store.add(chain)
        await store.expire(limit=10)
        assert await statuses(store, chain) == [PENDING, FAILED, CANCELLED]
        (mine,) = await claim(store, 5)
        assert await claim(store, 5, succeed(mine, None)) == []

    async def test_one_failure_ends_the_wait_for_a_group_and_nothing_else(self, store: Storage) -> None:
        *members, last = await new_group(store, 3)
        mine = await claim(store, 10)
        await settle(store, fail(mine[1], error_of(mine[1]), 0.0))
        assert await statuses(store, [*members, last]) == [RUNNING, FAILED, RUNNING, CANCELLED]
        await settle(store, succeed(mine[0], None), fail(mine[2], error_of(mine[2]), 0.0))
        assert len((await get(store, last)).errors) == 1

    @pytest.mark.parametrize("ending", ENDINGS)
    async def test_a_task_with_run_always_runs_whatever_became_of_the_others(self, store: Storage, ending: str) -> None:
        end, _ = ENDINGS[ending]
        *_, last = await new_group(store, 3, run_always=True)
        mine = await claim(store, 10)
        await settle(store, end(mine[0]), end(mine[1]))
        assert (await get(store, last)).waits_for == 1
        assert ids(await claim(store, 10, end(mine[2]))) == [last.id]

    # Running again.

    async def test_when_a_step_runs_again_those_behind_it_wait_again(self, store: Storage) -> None:
        chain = await new_chain(store, 4)
        (mine,) = await claim(store)
        (mine,) = await claim(store, 1, succeed(mine, None))
        await settle(store, fail(mine, error_of(mine), 0.0))
        assert await statuses(store, chain) == [SUCCESS, FAILED, CANCELLED, CANCELLED]
        assert ids(await store.retry([chain[1].id])) == [chain[1].id]
        assert await statuses(store, chain) == [SUCCESS, PENDING, PENDING, PENDING]
        for step in chain[1:]:
            (mine,) = await claim(store, 10)
            assert mine.id == step.id
            await settle(store, succeed(mine, None))
        assert await statuses(store, chain) == [SUCCESS] * 4

    async def test_a_task_that_depends_on_a_failed_one_runs_again_only_after_it(self, store: Storage) -> None:
        first, second, third = await new_chain(store, 3)
        (mine,) = await claim(store)
        await settle(store, fail(mine, error_of(mine), 0.0))
        assert list(await store.retry([third.id, second.id])) == []
        assert ids(await store.retry([third.id, second.id, first.id])) == [first.id]
        assert await statuses(store, [first, second, third]) == [PENDING] * 3
        assert ids(await claim(store, 5)) == [first.id]

    async def test_a_group_comes_back_when_nothing_stands_in_its_way(self, store: Storage) -> None:
        *members, last = await new_group(store, 4)
        mine = await claim(store, 10)
        await settle(store, *(fail(task, error_of(task), 0.0) for task in mine[:2]), succeed(mine[2], None))
        await store.retry([members[0].id])
        assert (await get(store, last)).status is CANCELLED  # the second one has failed too
        await store.retry([members[1].id])
        back = await get(store, last)
        assert (back.status, back.waits_for, back.eta) == (PENDING, 3, NEVER)
        again = await claim(store, 10)
        assert ids(again) == ids(members[:2])
        await settle(store, *(succeed(task, None) for task in again))
        assert await claim(store, 10) == []
        assert ids(await claim(store, 10, succeed(mine[3], None))) == [last.id]

    async def test_a_large_group_that_failed_comes_back_with_the_last_one_that_runs_again(self, store: Storage) -> None:
        *members, last = await new_group(store, 30)
        mine = await claim(store, 100)
        await settle(store, *(fail(task, error_of(task), 0.0) for task in mine))
        first, *others = ids(members)
        assert len(await store.retry(list(reversed(others)))) == len(others)
        assert (await get(store, last)).status is CANCELLED
        await store.retry([first])
        back = await get(store, last)
        assert (back.status, back.waits_for) == (PENDING, 30)

    @pytest.mark.parametrize("run_always", [False, True])
    async def test_one_that_is_run_again_before_the_others_are_done_is_waited_for_again(
        self, store: Storage, run_always: bool
    ) -> None:
        *members, last = await new_group(store, 2, run_always=run_always)
        mine = await claim(store, 10)
        await settle(store, succeed(mine[0], None))
        await store.retry([members[0].id])
        assert (await get(store, last)).waits_for == 2
        (again,) = await claim(store, 10, succeed(mine[1], None))
        assert again.id == members[0].id
        assert ids(await claim(store, 10, succeed(again, None))) == [last.id]

    async def test_one_that_runs_again_when_all_is_done_changes_nothing_behind_it(self, store: Storage) -> None:
        first, second = await new_chain(store, 2)
        (mine,) = await claim(store)
        (mine,) = await claim(store, 1, succeed(mine, None))
        await store.retry([first.id])
        assert (await get(store, second)).status is RUNNING
        await settle(store, succeed(mine, b"1"))
        (mine,) = await claim(store, 5)
        await settle(store, fail(mine, error_of(mine), 0.0))
        assert await statuses(store, [first, second]) == [FAILED, SUCCESS]
        await store.retry([second.id])  # by hand, though the first has failed since: no
        assert (await get(store, second)).status is SUCCESS

    async def test_what_people_have_cancelled_stays_so(self, store: Storage) -> None:
        first, second = await new_chain(store, 2)
        await store.cancel([second.id])
        (mine,) = await claim(store)
        await settle(store, fail(mine, error_of(mine), 0.0))
        await store.retry([first.id])
        assert await statuses(store, [first, second]) == [PENDING, CANCELLED]
        assert ids(await store.retry([second.id])) == [second.id]
        assert (await get(store, second)).waits_for == 1
        (mine,) = await claim(store, 5)
        assert ids(await claim(store, 5, succeed(mine, None))) == [second.id]

    async def test_a_cancelled_follower_is_not_restored_if_another_task_has_its_unique_key(
        self, store: Storage
    ) -> None:
        chain = new_tasks(2)
        first = replace(chain[0], next_task_id=chain[1].id)
        await store.add([first, replace(chain[1], depends_on=DependsOn(ids=(first.id,)), waits_for=1, unique_key="k")])
        await store.cancel([first.id])
        await added(store, unique_key="k", eta=await store.now() + FAR)
        assert ids(await store.retry([first.id])) == [first.id]
        assert await statuses(store, chain) == [PENDING, CANCELLED]

    # Forgetting.

    async def test_a_task_that_another_one_depends_on_is_not_pruned(self, store: Storage) -> None:
        *members, last = await new_group(store, 2, result_ttl=A_MOMENT)
        mine = await claim(store, 10)
        await settle(store, succeed(mine[0], b"1"))
        assert await store.prune(limit=10) == 0
        assert await store.delete([members[0].id]) == 0
        (waiting,) = await claim(store, 10, succeed(mine[1], b"2"))
        assert await store.prune(limit=10) == 0
        assert [task.result for task in await store.get(ids(members)) if task] == [b"1", b"2"]
        await settle(store, succeed(waiting, None))
        assert await store.prune(limit=10) == 3
        assert await store.get(ids([*members, last])) == [None] * 3

    async def test_other_tasks_are_pruned_beside_one_that_a_task_depends_on(self, store: Storage) -> None:
        groups = [await new_group(store, 2, result_ttl=A_MOMENT) for _ in range(3)]
        held = await claim(store, 10)
        await settle(store, *(succeed(task, None) for task in held[::2]))
        done = await claimed_one(store, result_ttl=A_MOMENT)
        await settle(store, succeed(done, None))
        assert await store.prune(limit=1) == 1
        assert await store.get([done.id]) == [None]
        assert len(await store.list(TaskFilter(), limit=100)) == sum(map(len, groups))

    # Children.

    async def test_children_come_with_the_success_of_their_parent(self, store: Storage) -> None:
        parent = await claimed_one(store)
        children = (new_task(payload=b"1"), new_task(queue="mail", concurrency_key="c"), new_task(eta=9e9))
        async with Span(store) as span:
            (mine,) = await claim(store, 10, succeed(parent, b"done", children=children))
        assert mine.id == children[0].id
        assert (await get(store, children[0])).created_at in span
        assert ids(await claim(store, 10, queues=("mail",))) == [children[1].id]
        assert (await get(store, children[2])).eta == 9e9
        assert (await get(store, parent)).result == b"done"

    async def test_children_of_an_attempt_that_is_over_never_come(self, store: Storage) -> None:
        parent = await claimed_one(store)
        await settle(store, release(parent))
        (again,) = await claim(store)
        late = succeed(parent, b"late", children=(new_task(),))
        assert await settle(store, late) == {AttemptKey(parent.id, 1)}
        assert len(await store.list(TaskFilter(), limit=10)) == 1
        child = new_task()
        done = succeed(again, b"1", children=(child,))
        assert await settle(store, done) == frozenset()
        assert await settle(store, done) == {AttemptKey(parent.id, 2)}
        assert ids(await claim(store, 10)) == [child.id]

    async def test_a_parent_and_others_are_settled_together(self, store: Storage) -> None:
        await store.add(new_tasks(4))
        first, second, third, fourth = await claim(store, 4)
        await settle(store, release(third))
        child = new_task(priority=9)
        exchange = await store.exchange(
            [
                succeed(first, b"1"),
                succeed(second, b"2", children=(child,)),
                succeed(third, b"3", children=(new_task(),)),
                fail(fourth, error_of(fourth), 0.0),
            ],
            worker="w",
            queues=("default",),
            limit=5,
            lease=FAR,
            claim_id="c",
        )
        assert exchange.rejected == {AttemptKey(third.id, 1)}
        assert ids(exchange.claimed) == [child.id, third.id]
        assert await statuses(store, [first, second, fourth]) == [SUCCESS, SUCCESS, FAILED]

    async def test_a_child_whose_unique_key_is_taken_is_not_added(self, store: Storage) -> None:
        there = await added(store, unique_key="k", eta=await store.now() + FAR)
        parent = await claimed_one(store)
        children = (new_task(unique_key="k"), new_task(unique_key="j"))
        assert await settle(store, succeed(parent, None, children=children)) == frozenset()
        assert set(ids(await store.list(TaskFilter(), limit=10))) == {there.id, parent.id, children[1].id}

    async def test_a_child_whose_id_is_there_stays_as_it_is(self, store: Storage) -> None:
        there = await claimed_one(store, queue="mail")
        parent = await claimed_one(store)
        children = (replace(new_task(queue="mail"), id=there.id), new_task(queue="mail"))
        assert await settle(store, succeed(parent, None, children=children)) == frozenset()
        assert (await get(store, there)).status is RUNNING
        assert await settle(store, succeed(there, None)) == frozenset()
        assert await store.counts() == {"default": {SUCCESS: 1}, "mail": {SUCCESS: 1, PENDING: 1}}

    async def test_a_child_may_be_a_chain(self, store: Storage) -> None:
        parent = await claimed_one(store)
        first, second = new_task(), new_task(queue="mail")
        first = replace(first, next_task_id=second.id)
        second = replace(second, depends_on=DependsOn(ids=(first.id,)), waits_for=1)
        (mine,) = await claim(store, 5, succeed(parent, None, children=(first, second)), queues=("default", "mail"))
        assert mine.id == first.id
        assert ids(await claim(store, 5, succeed(mine, None), queues=("mail",))) == [second.id]

    # All at once.

    async def test_members_that_end_at_once_are_all_counted(self, store: Storage) -> None:
        groups = [await new_group(store, 12) for _ in range(3)]
        mine = await claim(store, 100)
        shares = [mine[number::9] for number in range(9)]
        await asyncio.gather(*(settle(store, *(succeed(task, None) for task in share)) for share in shares))
        assert {(await get(store, group[-1])).waits_for for group in groups} == {0}
        assert set(ids(await claim(store, 10))) == {group[-1].id for group in groups}
