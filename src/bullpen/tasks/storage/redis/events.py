"""Events, and the tasks that wait for them.

A queue may be on another node of a cluster than the events. So a client writes the event first, then wakes the tasks of
each queue that wait for it. A settlement that awaits an event looks for it in the same script; on a cluster, the client
looks for it after the script. Whichever comes second finds the other. A client that dies in between has left a note
in `:looks` before, and the upkeep of any worker looks again.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import partial
from uuid import uuid4

from bullpen.tasks.model.events import Event
from bullpen.tasks.model.task import NEVER
from bullpen.tasks.storage.notifications import EVENT
from bullpen.tasks.storage.port import readable
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.client import RedisClient, queue_names
from bullpen.tasks.storage.redis.failures import translated_errors
from bullpen.tasks.storage.redis.history import pairs_of

LOOK_AGAIN = 5.0  # seconds after which a client that has not finished is taken for dead


class TaskEvents(RedisClient):
    """The key of the events has a tag of its own; `:ends` has their names by the end of their time to live."""

    async def emit(self, name: str, payload: bytes, ttl: float | None) -> bool:
        note = _note_for(name)
        listed_at = "" if self.cluster else self._list_of_queues
        words = [name, payload, repr(NEVER if ttl is None else ttl), note, f"{self._channel}:ends", listed_at]
        with translated_errors(self.name):
            is_new, listed = await (await self._connected()).run(scripts.EMIT, [self._events], words)
        await self._wake_tasks(name, queue_names(listed))
        await self._execute("ZREM", f"{self._events}:looks", note)
        return bool(is_new)

    async def wait_for_event(self, name: str, timeout: float) -> Event | None:
        found: list[Event] = []

        async def look() -> float | None:
            stored = await self._execute("HGET", self._events, name)
            found[:] = [] if stored is None else _events([(name.encode(), stored)])
            return 0.0 if found else None

        if await look() is None and timeout > 0:
            await self._wait(self._listen_for_ends, timeout, [EVENT + name], look)
            if not found:  # anyone may publish a notification
                await look()
        return found[0] if found else None

    async def events(self, *, limit: int, after: str | None = None) -> Sequence[Event]:
        found = _events(pairs_of(await self._execute("HGETALL", self._events)))
        return sorted((event for event in found if event.name > (after or "")), key=lambda event: event.name)[:limit]

    async def _wake_tasks(self, name: str, queues: Sequence[str] = ()) -> None:
        """Make the tasks of all queues due that wait for an event."""
        places = dict.fromkeys(queues or await self._queues(), "")
        while places:
            calls = [(queue, [self._channel, name, after]) for queue, after in places.items()]
            answers = zip(places, await self._run_each(scripts.WAKE, calls), strict=True)
            places = {queue: after for queue, after in answers if after}

    @asynccontextmanager
    async def _looking_afterwards(self, names: Collection[str]) -> AsyncIterator[None]:
        """On a cluster: settlements that await events are applied inside."""
        notes = {_note_for(name): name for name in names}
        now = repr(await self.now())
        await self._execute("ZADD", f"{self._events}:looks", *(word for note in notes for word in (now, note)))
        yield
        await self._look_at(notes)

    async def _look_at(self, notes: dict[bytes, str]) -> None:
        for note, name in notes.items():
            stored = await self._execute("HGET", self._events, name)
            if stored is not None and _events([(name.encode(), stored)]):
                await self._wake_tasks(name)
            await self._execute("ZREM", f"{self._events}:looks", note)

    async def _tend_events(self) -> None:
        """Upkeep: delete old events that no task awaits, and finish the work of clients that died."""
        with translated_errors(self.name):
            connection = await self._connected()
            old, notes = await connection.run(scripts.PRUNE_EVENTS, [self._events], [repr(LOOK_AGAIN)])
            if old:
                unawaited = [name for name in old if not await self._is_awaited(name)]
                await connection.run(scripts.PRUNE_EVENTS, [self._events], [repr(LOOK_AGAIN), *unawaited])
        await self._look_at({note: note.rpartition(b"\0")[0].decode(errors="replace") for note in notes})

    async def _is_awaited(self, name: bytes) -> bool:
        places = (b"[" + name + b"\0", b"(" + name + b"\1")
        found = await self._execute_for_queues(
            await self._queues(), "ZRANGEBYLEX", "awaiting", *places, "LIMIT", "0", "1"
        )
        return any(found)


def _note_for(name: str) -> bytes:
    return f"{name}\0{uuid4().hex}".encode()


def _events(pairs: Iterable[tuple[bytes, bytes]]) -> list[Event]:
    """The events of names and stored texts, without those that another program has damaged."""
    return readable(Event, (partial(_event_fields, *pair) for pair in pairs))


def _event_fields(name: bytes, stored: bytes) -> Sequence[object]:
    at, expires_at, payload = stored.split(b" ", 2)
    return name.decode(), payload, float(at), float(expires_at)
