"""Hold every single change of state against the tables, also those that the hot path makes without a guard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

from bullpen.pools.dispatch.pool_status import Phase, PoolStatus
from bullpen.pools.dispatch.request import Request
from bullpen.pools.dispatch.states import POOL_MOVES, REQUEST_MOVES, WORKER_MOVES, Moves, check_move
from bullpen.pools.dispatch.worker import Worker


@contextmanager
def checked_moves() -> Iterator[None]:
    """Inside, an assignment that its table does not have raises `IllegalTransition`. To stay is allowed."""
    with ExitStack() as restore:
        for owner, name, table in (
            (Request, "state", REQUEST_MOVES),
            (Worker, "status", WORKER_MOVES),
            (PoolStatus, "phase", POOL_MOVES),
        ):
            restore.enter_context(_checked(owner, name, table))
        yield


@contextmanager
def _checked(owner: type, name: str, table: Moves[Any]) -> Iterator[None]:
    slot = vars(owner).get(name)
    setattr(owner, name, property(*_accessors(slot, name, table)))
    try:
        yield
    finally:
        if slot is None:
            delattr(owner, name)
        else:
            setattr(owner, name, slot)


def _accessors(slot: Any, name: str, table: Moves[Any]) -> tuple[Callable[[Any], Any], Callable[[Any, Any], None]]:
    """Through the slot where the class has slots, into the instance's dictionary where it has none."""

    def get(instance: Any) -> Any:
        return instance.__dict__[name] if slot is None else slot.__get__(instance)

    def change(instance: Any, new: Any) -> None:
        try:
            old = get(instance)
        except (AttributeError, KeyError):  # it is being made
            old = new
        before, after = (each.state if isinstance(each, Phase) else each for each in (old, new))
        if before is not after:
            check_move(table, before, after)
        if slot is None:
            instance.__dict__[name] = new
        else:
            slot.__set__(instance, new)

    return get, change
