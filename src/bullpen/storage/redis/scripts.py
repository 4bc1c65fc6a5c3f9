"""What the store says to the server, in Lua: each script is one atomic step. The clock is the server's.

All keys of a queue begin with its tag, `{prefix:queue}`, so that they are on one node of a cluster. If the prefix has
curly brackets itself, the tag is `prefix:queue`, and all queues are on the same node:

    :body        what only people change about a task, by id; read by clients alone
    :state       the rest, by id: an array in msgpack, in the order of `rows.State`
    :result      results, by id
    :follows     the ids of those that a task waits for, by id; as they end, they are only counted
    :ids         all ids, in order
    :ready:P     those that wait, with priority P and no concurrency key, by eta and id
    :keyed:P     … and with one
    :keyed:P:KEY … and with this one; but no schedules
    :keys:P      the keys that those have
    :regular:P   … and schedules with one
    :running     those that run, by the end of their lease, which is kept nowhere else
    :finished    final ones, by when they are to be forgotten
    :expiring    those that wait and have to start in time, by when
    :busy        how many run, by concurrency key
    :order:KEY   those with a concurrency key that are not over, by when they were added; no schedules
    :unique      which task had it last, by unique key
    :counts      how many there are, by status; but not of those that run
    :limits      the limits of the queue, and whether it is paused
    :starts      the latest starts, of a queue with a rate
    :offers      workers that wait, and what they would claim, by until when

A script gets what it needs in one value, as far as that is text and numbers (bytes, msgpack in Lua does not know), and
touches each key once for all tasks: calls are what costs. Each is in a file of `lua/` that has its name, and what
several use is in `lua/parts/`.
"""

from __future__ import annotations

import re
from importlib.resources import files

from bullpen.storage.redis.rows import State
from bullpen.tasks.ids import SCHEDULES
from bullpen.tasks.links import GIVEN_UP
from bullpen.tasks.task import ERRORS_KEPT, NEVER, NOT_IN_TIME, UNPLANNED

# What stands for a name in a script. A local variable instead would cost some time whenever a script begins.
_MEANINGS: dict[str, object] = {
    **{name.upper(): number for number, name in enumerate(State.__struct_fields__, start=1)},
    "ERRORS_KEPT": ERRORS_KEPT,
    "UNPLANNED": UNPLANNED,
    "LAST_DAY": NEVER,
    "GIVEN_UP": GIVEN_UP,
    "SCHEDULES": f"'{SCHEDULES}'",
    "NOT_IN_TIME": f"'{NOT_IN_TIME}'",
    "MOST_NEWS": 65_536,  # bytes that come with a notification
}
_NAME = re.compile(rf"\b({'|'.join(_MEANINGS)})\b")

_WITH = re.compile(r"^ *-- WITH (.+)$", re.MULTILINE)

_LUA = files(__package__).joinpath("lua")


def _script(name: str) -> str:
    """Where it says `-- WITH` and the names of parts, these are, each after what it uses itself. To begin with them
    takes a while, so those that are seldom needed are named in the branch that needs them.
    """

    def parts(found: re.Match[str]) -> str:
        return "\n".join(_text(f"parts/{part}.lua") for part in found[1].split())

    return _NAME.sub(lambda found: str(_MEANINGS[found[0]]), _WITH.sub(parts, _text(f"{name}.lua")))


def _text(path: str) -> str:
    return (_LUA / path).read_text("utf-8")


# Producers.
ADD = _script("add")
ADD_ONE = _script("add_one")
ADD_PLAIN = _script("add_plain")

# Workers.
EXCHANGE = _script("exchange")
FIND_CLAIM = _script("find_claim")
NEXT_WORK = _script("next_work")
OFFER = _script("offer")
OVERDUE = _script("overdue")
PEEK = _script("peek")
PROGRESS = _script("progress")
RENEW = _script("renew")
WITHDRAW = _script("withdraw")

# People.
AWAIT = _script("await")
CANCEL = _script("cancel")
CHANGE = _script("change")
COUNT = _script("count")
DELETE = _script("delete")
LIST = _script("list")
RETRY = _script("retry")
SHOW = _script("show")
WHERE = _script("where")

# Moving tasks between stores.
PUT = _script("put")
REMOVE = _script("remove")

# Workers, queues, limits.
LIMIT = _script("limit")
NOTE = _script("note")

# Upkeep.
DUE = _script("due")
EXPIRE = _script("expire")
PRUNE = _script("prune")
