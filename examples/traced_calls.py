"""Trace every call of a pool, and translate its errors, in one place: `wrap`.

The wrapper and the function see the caller's contextvars, here the order, because the calls are made through
`using(context=True)`.
"""

import contextvars
import time
from collections.abc import Callable
from typing import Any

from bullpen import CallPolicy, Pool

order = contextvars.ContextVar("order", default="none")
spans: list[tuple[str, float]] = []


class PaymentFailed(Exception):
    """What callers see, whatever went wrong inside."""


def traced(call: Callable[[], Any]) -> Any:
    started, outcome = time.perf_counter(), "ok"
    try:
        return call()
    except (KeyError, OSError) as error:
        outcome = "failed"
        raise PaymentFailed(f"payment failed: {error!r}") from error
    finally:
        spans.append((f"{order.get()} {outcome}", time.perf_counter() - started))


def pay(amount: int) -> str:
    if amount < 0:
        raise OSError("the bank refused")
    time.sleep(0.01)
    return f"paid {amount}"


def main() -> None:
    with Pool(1, name="pay", calls=CallPolicy(wrap=traced)) as pool:
        payments = pool.using(context=True)
        for number, amount in (("A1", 30), ("A2", -1)):
            order.set(number)
            try:
                print(f"order {number}: {payments.do(pay, amount)}")
            except PaymentFailed as error:
                print(f"order {number}: {error}")
    for name, seconds in spans:
        print(f"span {name} {seconds * 1000:.1f} ms")


if __name__ == "__main__":
    main()

# prints:
# order A1: paid 30
# order A2: payment failed: OSError('the bank refused')
# span A1 ok ... ms
# span A2 failed ... ms
