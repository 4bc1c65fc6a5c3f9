"""A worker in Python, without Bullpen: the protocol is lines of JSON, so the standard library is enough.

It runs one call at a time. A call that is cancelled meanwhile goes on to its end, or until it is killed.
"""

import json
import sys
import time


def say(**message):
    print(json.dumps(message), flush=True)


def add(first, second):
    return first + second


def fail(text):
    raise ValueError(text)


def sleep(seconds):
    time.sleep(seconds)
    return seconds


def count(limit):
    yield from range(limit)


METHODS = {"add": add, "fail": fail, "sleep": sleep, "count": count}


def answer(call):
    made = METHODS[call["method"]](*call["args"], **call["kwargs"])
    if not call["stream"]:
        return made
    for number, item in enumerate(made, 1):
        say(type="item", id=call["id"], value=item)
        say(type="progress", id=call["id"], value=number)
    return None


for line in sys.stdin:
    message = json.loads(line)
    if message["type"] == "hello":
        say(type="ready", protocol=1, name="worker.py", methods=list(METHODS))
    elif message["type"] == "ping":
        say(type="pong", id=message["id"])
    elif message["type"] == "call":
        try:
            say(type="result", id=message["id"], value=answer(message))
        except Exception as error:
            say(type="error", id=message["id"], name=type(error).__name__, message=str(error))
    elif message["type"] == "stop":
        break
