"""First in, first out, and never more than the bound."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.pools.dispatch.backlog import Backlog, BoundedBacklog, Ticket
from bullpen.pools.dispatch.request import Request
from tests.unit.pools.dispatch.support import new_request


def put(backlog: BoundedBacklog, request: Request, ticket: Ticket | None = None) -> bool:
    """Queue `request` if there is room, and no submitter waits for room before it."""
    if not backlog.take_place(ticket):
        return False
    backlog.append(request)
    return True


def fill(backlog: BoundedBacklog, count: int) -> list[Request]:
    requests: list[Request] = [new_request() for _ in range(count)]
    assert all(put(backlog, request) for request in requests)
    return requests


def is_open(ticket: Ticket) -> bool:
    """Whether its holder has been called; it goes through the gate, if so."""
    return ticket.gate.acquire(False)


@pytest.mark.parametrize("backlog", [Backlog(), BoundedBacklog(9)], ids=["unbounded", "bounded"])
def test_the_oldest_comes_first(backlog: Backlog) -> None:
    requests = [new_request() for _ in range(5)]
    for request in requests:
        backlog.append(request)
    assert backlog.copy() == requests
    assert [backlog.popleft() for _ in requests] == requests
    with pytest.raises(IndexError):
        backlog.popleft()


def test_a_withdrawn_request_no_longer_counts_as_waiting_though_its_tombstone_is_there() -> None:
    backlog = Backlog()
    for _ in range(3):
        backlog.append(new_request())
    backlog.withdrawn()
    assert (len(backlog), backlog.queued(skipped=0)) == (3, 2)
    backlog.popleft()  # a worker skips the tombstone
    assert (len(backlog), backlog.queued(skipped=1)) == (2, 2)


@pytest.mark.parametrize("limit", [0, 1, 3, 2500])
def test_the_bound_is_exact(limit: int) -> None:
    backlog = BoundedBacklog(limit)
    requests = fill(backlog, limit)
    assert not put(backlog, new_request())
    assert (len(backlog), backlog.queued(skipped=0)) == (limit, limit)
    assert backlog.copy() == requests


@pytest.mark.parametrize("leave", ["started", "withdrawn"])
def test_a_request_that_leaves_makes_room_for_one(leave: str) -> None:
    backlog = BoundedBacklog(2)
    fill(backlog, 2)
    if leave == "started":
        backlog.popleft()
        backlog.left()
    else:
        backlog.withdrawn()
    assert put(backlog, new_request())
    assert not put(backlog, new_request())
    assert backlog.queued(skipped=0) == 2


@pytest.mark.parametrize("limit", [0, 2])
def test_a_worker_on_its_way_brings_a_place_for_the_request_it_will_take(limit: int) -> None:
    backlog = BoundedBacklog(limit)
    backlog.reserve_place()
    fill(backlog, limit + 1)
    assert not put(backlog, new_request())
    backlog.popleft()  # it comes, takes one, and does not give back its place
    assert not put(backlog, new_request())
    assert backlog.queued(skipped=0) == limit


def test_a_worker_that_found_no_request_withdraws_its_reserved_place() -> None:
    backlog = BoundedBacklog(0)
    backlog.reserve_place()
    backlog.withdraw_place()
    assert not put(backlog, new_request())


def test_the_debt_of_a_reserved_place_that_was_taken_is_paid_by_the_next_request_that_leaves() -> None:
    backlog = BoundedBacklog(1)
    backlog.reserve_place()
    fill(backlog, 2)
    backlog.withdraw_place()  # the worker will not come
    assert not put(backlog, new_request())
    backlog.popleft()
    backlog.left()
    assert not put(backlog, new_request()), "one place less, as owed"
    backlog.popleft()
    backlog.left()
    assert put(backlog, new_request())


def test_a_reserved_place_is_not_paid_with_a_place_that_was_never_made() -> None:
    backlog = BoundedBacklog(1)
    backlog.reserve_place()
    fill(backlog, 1)
    backlog.withdraw_place()  # the worker will not come: what waits takes the only place there is
    assert not put(backlog, new_request())


def test_a_new_reservation_pays_the_debt_of_an_old_one() -> None:
    backlog = BoundedBacklog(0)
    backlog.reserve_place()
    fill(backlog, 1)
    backlog.withdraw_place()  # that worker will not come
    backlog.reserve_place()  # another comes for the same request
    assert not put(backlog, new_request())


def test_the_place_of_a_request_with_a_worker_on_its_way_is_its_own() -> None:
    backlog = BoundedBacklog(0, per_worker=2)
    assert backlog.reserve_place_for()
    assert backlog.take_place(), "the second place of that worker"
    assert not backlog.take_place()


def test_a_request_with_a_worker_on_its_way_has_no_place_while_there_is_a_debt() -> None:
    backlog = BoundedBacklog(0)
    backlog.reserve_place()
    fill(backlog, 1)
    backlog.withdraw_place()  # that worker will not come
    assert not backlog.reserve_place_for(), "another comes, for the request that waits"
    assert backlog.reserve_place_for()


def test_a_request_that_is_put_back_is_the_oldest_and_takes_its_place_again() -> None:
    backlog = BoundedBacklog(2)
    first, second = fill(backlog, 2)
    assert backlog.popleft() is first
    backlog.left()
    backlog.put_back(first)
    assert backlog.copy() == [first, second]
    assert not put(backlog, new_request())


def test_submitters_that_wait_for_room_are_served_in_order_before_new_ones() -> None:
    backlog = BoundedBacklog(1)
    fill(backlog, 1)
    first, second = backlog.take_ticket(), backlog.take_ticket()
    assert not is_open(first)
    backlog.popleft()
    backlog.left()
    assert is_open(first)
    assert not is_open(second)
    assert not put(backlog, new_request()), "a newcomer does not overtake"
    assert not put(backlog, new_request(), second), "nor does the second"
    assert put(backlog, new_request(), first)
    backlog.return_ticket(first)
    assert is_open(second), "the next in line may try"
    second.rearm()
    assert not put(backlog, new_request(), second)
    backlog.return_ticket(second)
    assert not put(backlog, new_request())


def test_a_submitter_that_gives_up_leaves_its_turn_to_the_next() -> None:
    backlog = BoundedBacklog(0)
    first, second = backlog.take_ticket(), backlog.take_ticket()
    backlog.return_ticket(first)
    assert is_open(second)
    backlog.return_ticket(second)


def test_a_gate_is_opened_once_however_often_its_holder_is_called() -> None:
    backlog = BoundedBacklog(0)
    ticket = backlog.take_ticket()
    backlog.call_next()
    backlog.call_next()
    backlog.call_all()
    assert is_open(ticket)
    assert not is_open(ticket)
    ticket.rearm()
    assert not is_open(ticket)
    backlog.call_next()
    assert is_open(ticket)


def test_rearming_forgets_a_call_that_was_not_waited_for() -> None:
    backlog = BoundedBacklog(0)
    ticket = backlog.take_ticket()
    backlog.call_next()
    ticket.rearm()
    assert not is_open(ticket)


def test_when_the_pool_closes_every_waiting_submitter_is_called() -> None:
    backlog = BoundedBacklog(0)
    tickets = [backlog.take_ticket() for _ in range(3)]
    backlog.call_next()
    backlog.call_all()
    assert all(is_open(ticket) for ticket in tickets)


def test_a_worker_on_its_way_calls_a_submitter_that_waits_for_room() -> None:
    backlog = BoundedBacklog(0)
    ticket = backlog.take_ticket()
    backlog.reserve_place()
    assert is_open(ticket)
    assert put(backlog, new_request(), ticket)


@given(
    st.integers(0, 3),
    st.lists(st.sampled_from(["put", "put", "reserve", "take", "take reserved", "withdraw place", "withdraw"])),
)
def test_whatever_the_order_there_is_room_exactly_for_the_bound_and_those_that_workers_come_for(
    limit: int, steps: list[str]
) -> None:
    backlog = BoundedBacklog(limit)
    waiting = starting = 0
    for step in steps:
        if step == "put":
            accepted = put(backlog, new_request())
            assert accepted == (waiting - starting < limit)
            waiting += accepted
        elif step == "reserve":
            backlog.reserve_place()
            starting += 1
        elif step == "take" and waiting:
            backlog.left()
            waiting -= 1
        elif step == "withdraw" and waiting:
            backlog.withdrawn()
            waiting -= 1
        elif step == "take reserved" and waiting and starting:
            waiting -= 1
            starting -= 1
        elif step == "withdraw place" and starting:
            backlog.withdraw_place()
            starting -= 1


def test_a_request_above_the_limit_gives_no_place_back() -> None:
    backlog = BoundedBacklog(1)
    fill(backlog, 1)
    above = new_request()
    backlog.put_above_limit(above)
    assert [backlog.popleft(), backlog.popleft()][1] is above
    backlog.left()
    assert not put(backlog, new_request()), "as if one request still waited"
    backlog.left()
    assert put(backlog, new_request())
    assert not put(backlog, new_request())
