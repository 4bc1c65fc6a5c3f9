"""A gateway that asks several services for each visitor, with bounds, deadlines and work on threads.

Coroutines run on the event loop, at most 20 at once; the function that computes runs on a thread, so that the loop goes
on. A service that hangs delays only its own callers, until their deadline.
"""

import asyncio
import hashlib

from bullpen import AsyncPool, DeadlineExceeded


async def ask(service: str, visitor: int) -> str:
    await asyncio.sleep(30 if service == "broken" else 0.01)
    return f"{service} of {visitor}"


def sign(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


async def visit(pool: AsyncPool, visitor: int) -> str:
    profile, offers = await asyncio.gather(
        pool.using(timeout=5).do(ask, "profile", visitor),
        pool.using(timeout=0.2).do(ask, "broken" if visitor == 3 else "offers", visitor),
        return_exceptions=True,
    )
    if isinstance(offers, DeadlineExceeded):
        offers = "no offers"
    return f"{profile}, {offers}, signed {len(await pool.do(sign, str(profile)))}"


async def main() -> None:
    async with AsyncPool(20, threads=2, max_queue=100, name="gateway") as pool:
        for answer in await asyncio.gather(*[visit(pool, visitor) for visitor in range(5)]):
            print(answer)
    stats = pool.stats()
    print(f"{stats.coroutines.completed} answers in time, {stats.timed_out} too late, {stats.threads.completed} signed")


if __name__ == "__main__":
    asyncio.run(main())

# prints:
# profile of 0, offers of 0, signed 8
# profile of 1, offers of 1, signed 8
# profile of 2, offers of 2, signed 8
# profile of 3, no offers, signed 8
# profile of 4, offers of 4, signed 8
# 9 answers in time, 1 too late, 5 signed
