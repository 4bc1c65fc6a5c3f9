"""A program that speaks the protocol and runs any function, so that the contract can be asked of it.

Its arguments are a path to import from, and what to do first. Calls and answers are pickles, as texts in the JSON. The
first call runs on the main thread; what comes while it runs, beside it.
"""

from __future__ import annotations

import base64
import json
import pickle
import queue
import sys
import threading
from typing import Any


def packed(value: Any) -> str:
    return base64.b64encode(pickle.dumps(value)).decode()


def unpacked(text: str) -> Any:
    return pickle.loads(base64.b64decode(text))


def say(**message: Any) -> None:
    data = (json.dumps(message) + "\n").encode()
    with saying:
        sys.stdout.buffer.write(data)
        sys.stdout.buffer.flush()


def answer(message: dict[str, Any]) -> dict[str, Any]:
    try:
        fn, args, kwargs = unpacked(message["args"][0])
        return {"type": "result", "id": message["id"], "value": packed(fn(*args, **kwargs))}
    except BaseException as error:
        name, details = type(error).__name__, described(error)
        return {"type": "error", "id": message["id"], "name": name, "message": str(error), "details": details}


def described(error: BaseException) -> str:
    from bullpen.pools.runtimes.process import failures

    return packed(failures.describe(error, hide=1))


def listen() -> None:
    for line in sys.stdin:
        message = json.loads(line)
        if message["type"] == "call" and busy.is_set():
            threading.Thread(target=lambda call: say(**answer(call)), args=(message,), daemon=True).start()
        else:
            if message["type"] == "call":
                busy.set()
            inbox.put(message)


saying = threading.Lock()
inbox: queue.SimpleQueue[dict[str, Any]] = queue.SimpleQueue()
busy = threading.Event()  # the main thread is

try:
    sys.path[:] = sys.argv[1].split("\n")
    if len(sys.argv) > 2:
        initializer, initargs = unpacked(sys.argv[2])
        initializer(*initargs)
except BaseException as error:
    say(type="error", id=0, name=type(error).__name__, message=str(error), details=described(error))
    sys.exit(1)
threading.Thread(target=listen, daemon=True).start()
while (heard := inbox.get())["type"] != "stop":
    if heard["type"] == "hello":
        say(type="ready", protocol=1, name="python_program", capacity=100)
    elif heard["type"] == "ping":
        say(type="pong", id=heard["id"])
    elif heard["type"] == "call":
        outcome = answer(heard)
        busy.clear()  # before it is said: the next call may come at once
        say(**outcome)
