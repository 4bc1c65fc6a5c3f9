"""Records of workers, and the pause and limits of queues."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

import msgspec

from bullpen.errors import StorageFull
from bullpen.tasks.model.options import QUEUE_NAME
from bullpen.tasks.storage.port import Limit, WorkerRecord, read_limit, readable_workers
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.client import RedisClient
from bullpen.tasks.storage.redis.failures import translated_errors

_decode_worker = msgspec.json.Decoder(WorkerRecord).decode


class QueueSettings(RedisClient):
    """Values that are stored beside the tasks."""

    async def save_worker(self, record: WorkerRecord) -> None:
        seen = msgspec.structs.replace(record, seen_at=await self.now())
        with translated_errors(self.name):
            connection = await self._connected()
            words = [record.id, msgspec.json.encode(seen)]
            await connection.run(scripts.SAVE_WORKER, [f"{self.prefix}:workers"], words)
        queues = [queue for queue in record.queues if QUEUE_NAME.fullmatch(queue)]
        answers = await self._run_each(scripts.LIST_QUEUE, [(queue, []) for queue in queues])
        with suppress(StorageFull):  # a worker that cannot repair the list goes on
            was_missing = 2 in answers
            if unlisted := [queue for queue, is_listed in zip(queues, answers, strict=True) if not is_listed]:
                was_missing = await self._list_queues(unlisted) > 0
            if was_missing:  # others may be missing, too
                await self._search_queues()

    async def delete_worker(self, worker: str) -> None:
        await self._execute("HDEL", f"{self.prefix}:workers", worker)

    async def workers(self) -> Sequence[WorkerRecord]:
        records = await self._execute("HVALS", f"{self.prefix}:workers")
        return sorted(readable_workers(zip(records), _decode_worker), key=lambda record: record.id)

    async def pause(self, queue: str) -> None:
        await self._list_first([queue])
        await self._run(scripts.SET_LIMITS, queue, [self._channel, queue, "paused", "1"])
        await self._list_again([queue])

    async def resume(self, queue: str) -> None:
        await self._run(scripts.SET_LIMITS, queue, [self._channel, queue, "paused", ""])

    async def queues(self) -> frozenset[str]:
        return frozenset(await self._queues())

    async def paused(self) -> frozenset[str]:
        names = await self._queues()
        answers = await self._execute_for_queues(names, "HEXISTS", "limits", "paused")
        return frozenset(name for name, is_paused in zip(names, answers, strict=True) if is_paused)

    async def set_limit(self, limit: Limit) -> None:
        terms = {
            "max_running": limit.max_running,
            "max_running_per_key": limit.max_running_per_key,
            "rate": None if limit.rate is None else repr(float(limit.rate)),
            "in_order": 1 if limit.in_order else None,
            "declared": 1 if limit.declared and limit.is_limit else None,
        }
        await self._list_first([limit.queue])
        given = [word for name, term in terms.items() for word in (name, "" if term is None else term)]
        await self._run(scripts.SET_LIMITS, limit.queue, [self._channel, limit.queue, *given])
        await self._list_again([limit.queue])

    async def limits(self) -> Sequence[Limit]:
        limits = []
        queues = await self._queues()
        terms = Limit.__struct_fields__[1:]
        for queue, words in zip(queues, await self._execute_for_queues(queues, "HMGET", "limits", *terms), strict=True):
            limit = read_limit(queue, partial(_terms, *words))
            limits += [limit] if limit.is_limit else []
        return limits


def _terms(most: bytes | None, per_key: bytes | None, rate: bytes | None, *flags: bytes | None) -> dict[str, Any]:
    in_order, declared = flags
    return {
        "max_running": None if most is None else int(float(most)),
        "max_running_per_key": None if per_key is None else int(float(per_key)),
        "rate": None if rate is None else float(rate),
        "in_order": in_order is not None,
        "declared": declared is not None,
    }
