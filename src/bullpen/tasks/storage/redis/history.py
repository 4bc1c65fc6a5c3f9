"""The history. One hash holds the rows of an hour by minute, another those of a day by hour; Redis deletes it when the
time for which its rows are kept is over.
"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from bullpen.tasks.model.history import HOUR, KEPT, MINUTE, HistoryRow, Vector
from bullpen.tasks.storage.redis import scripts
from bullpen.tasks.storage.redis.client import RedisClient
from bullpen.tasks.storage.redis.failures import translated_errors

BLOCK = {MINUTE: HOUR, HOUR: 86_400}  # seconds of the rows that one hash holds

_decode_field = msgspec.json.Decoder(tuple[int, str, str]).decode
_decode_vectors = msgspec.json.Decoder(tuple[Vector, Vector, Vector]).decode


class HistoryBlocks(RedisClient):
    """Counts by minute and hour. The keys have no tag: on a cluster, blocks are on different nodes."""

    async def add_history(self, rows: Sequence[HistoryRow]) -> None:
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
            pairs = block.items() if isinstance(block, dict) else zip(block[::2], block[1::2], strict=True)
            for field, vectors in pairs:
                at, of_queue, of_function = _decode_field(field)
                if (
                    first <= at < until
                    and (queue is None or of_queue == queue)
                    and (function is None or of_function == function)
                ):
                    found.append(HistoryRow(step, at, of_queue, of_function, *_decode_vectors(vectors)))
        return sorted(found, key=lambda row: (row.at, row.queue, row.function))

    def _block(self, step: int, number: int) -> str:
        return f"{self.prefix}:history:{step}:{number * BLOCK[step]}"
