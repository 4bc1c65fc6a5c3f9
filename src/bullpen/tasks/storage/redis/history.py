"""The history. One hash holds the rows of an hour by minute, another those of a day by hour; Redis deletes it when the
time for which its rows are kept is over.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from functools import partial
from typing import Any

import msgspec

from bullpen.tasks.model.failure_groups import FAILURES_KEPT, FailureExample, FailureRow
from bullpen.tasks.model.history import HOUR, KEPT, MINUTE, HistoryRow, Vector
from bullpen.tasks.storage.port import readable
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.client import RedisClient
from bullpen.tasks.storage.redis.failures import translated_errors

BLOCK = {MINUTE: HOUR, HOUR: 86_400}  # seconds of the rows that one hash holds

DAY = 86_400

_decode_key = msgspec.json.Decoder(tuple[int, str, str, str]).decode
_decode_failure = msgspec.json.Decoder(tuple[int, float, float, str]).decode
_decode_example = msgspec.json.Decoder(FailureExample).decode
_decode_field = msgspec.json.Decoder(tuple[int, str, str]).decode
_decode_vectors = msgspec.json.Decoder(tuple[Vector, Vector, Vector]).decode


class HistoryBlocks(RedisClient):
    """Counts by minute and hour. The keys have no tag: on a cluster, blocks are on different nodes."""

    async def add_history(self, rows: Sequence[HistoryRow], failures: Sequence[FailureRow] = ()) -> None:
        blocks: dict[tuple[int, int], list[bytes]] = {}
        for row in rows:
            words = blocks.setdefault((row.step, row.at // BLOCK[row.step]), [])
            words.append(msgspec.json.encode((row.at, row.queue, row.function)))
            words.append(msgspec.json.encode((row.counts, row.waits, row.runs)))
        with translated_errors(self.name):
            connection = await self._connected()
            for (step, number), words in blocks.items():
                end = (number + 1) * BLOCK[step] + int(KEPT[step])
                await connection.run(scripts.ADD_HISTORY, [self._block(step, number)], [end, *words])
            for day, words in _by_day(failures).items():
                end = (day + 1) * DAY + int(FAILURES_KEPT)
                await connection.run(scripts.ADD_FAILURES, [self._failures_of(day)], [end, *words])

    async def failures(self, since: float) -> Sequence[FailureRow]:
        fields = [partial(_failure_fields, field, value) for _, field, value in await self._failure_fields(since)]
        return [row for row in readable(FailureRow, fields) if row.at >= since]

    async def delete_failures(self, fingerprint: str, function: str | None = None) -> None:
        for day, field, value in await self._failure_fields(0.0):
            for row in readable(FailureRow, [partial(_failure_fields, field, value)]):
                if row.fingerprint == fingerprint and function in (None, row.function):
                    await self._execute("HDEL", self._failures_of(day), field)

    async def _failure_fields(self, since: float) -> list[tuple[int, bytes, bytes]]:
        """The day, field and value of each row."""
        now = await self.now()
        days = range(int(max(since, now - FAILURES_KEPT - DAY) // DAY), int(now // DAY) + 2)
        with translated_errors(self.name):
            connection = await self._connected()
            blocks = await connection.execute_many([("HGETALL", self._failures_of(day)) for day in days])
        return [(day, *pair) for day, block in zip(days, blocks, strict=True) for pair in pairs_of(block)]

    async def history(
        self, step: int, since: float, until: float, *, queue: str | None = None, function: str | None = None
    ) -> Sequence[HistoryRow]:
        first = max(since, await self.now() - KEPT[step])
        numbers = range(int(first // BLOCK[step]), int(until // BLOCK[step]) + 1)
        with translated_errors(self.name):
            connection = await self._connected()
            blocks = await connection.execute_many([("HGETALL", self._block(step, number)) for number in numbers])
        found = []
        for block in blocks:
            for field, vectors in pairs_of(block):
                found.append(partial(_history_fields, step, field, vectors))
        rows = [
            row
            for row in readable(HistoryRow, found)
            if first <= row.at < until
            and (queue is None or row.queue == queue)
            and (function is None or row.function == function)
        ]
        return sorted(rows, key=lambda row: (row.at, row.queue, row.function))

    def _failures_of(self, day: int) -> str:
        return f"{self.prefix}:failures:{day * DAY}"

    def _block(self, step: int, number: int) -> str:
        return f"{self.prefix}:history:{step}:{number * BLOCK[step]}"


def _history_fields(step: int, field: bytes, vectors: bytes) -> Sequence[Any]:
    return step, *_decode_field(field), *_decode_vectors(vectors)


def _failure_fields(field: bytes, value: bytes) -> Sequence[Any]:
    count, first, last, example = _decode_failure(value)
    return *_decode_key(field), count, first, last, _decode_example(example)


def pairs_of(block: Any) -> Iterable[tuple[bytes, bytes]]:
    """The fields and values of a hash. The protocol of the connection decides how they come."""
    return block.items() if isinstance(block, dict) else zip(block[::2], block[1::2], strict=True)


def _by_day(failures: Sequence[FailureRow]) -> dict[int, list[bytes]]:
    days: dict[int, list[bytes]] = {}
    for row in failures:
        words = days.setdefault(row.at // DAY, [])
        words.append(msgspec.json.encode(row.key))
        words.append(msgspec.json.encode((row.count, row.first, row.last, msgspec.json.encode(row.example).decode())))
    return days
