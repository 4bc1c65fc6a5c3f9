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
    :counts      how many there are, by status
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
}
_NAME = re.compile(rf"\b({'|'.join(_MEANINGS)})\b")

_LUA = files(__package__).joinpath("lua")


def _script(name: str, *parts: str, seldom: tuple[str, ...] = ()) -> str:
    """`parts`: what it uses of `lua/parts/`, each after what it uses itself. `seldom`: … in a branch that is rarely
    taken, for to begin with them takes a while.
    """
    text = "\n".join([*map(_part, ("basics", *parts)), _text(f"{name}.lua")])
    if seldom:
        text = text.replace("-- SELDOM\n", "\n".join(map(_part, seldom)))
    return _NAME.sub(lambda found: str(_MEANINGS[found[0]]), text)


def _part(name: str) -> str:
    return _text(f"parts/{name}.lua")


def _text(path: str) -> str:
    return (_LUA / path).read_text("utf-8")


# Producers.
ADD = _script("add", "moves", "places", "additions", "picks", "claims", "shown", "news", "offers")
ADD_PLAIN = _script("add_plain", "places", "news", seldom=("moves", "picks", "claims", "shown", "offers"))

# Workers.
EXCHANGE = _script(
    "exchange", "anyway", "moves", "picks", "claims", "shown", "news", seldom=("places", "links", "additions")
)
FIND_CLAIM = _script("find_claim", "shown")
NEXT_WORK = _script("next_work", "picks")
OFFER = _script("offer", "places", "picks")
OVERDUE = _script("overdue", "shown")
PEEK = _script("peek", "picks")
PROGRESS = _script("progress", "anyway")
RENEW = _script("renew", "anyway", "moves")
WITHDRAW = _script("withdraw", "moves", "picks", "claims", "shown", "news", "offers")

# People.
AWAIT = _script("await", "anyway", "shown")
CANCEL = _script("cancel", "anyway", "moves", "places", "links", "shown", "people")
CHANGE = _script("change", "anyway", "moves", "places", "links")
DELETE = _script("delete", "moves", "places", "links", "forgetting")
LIST = _script("list", "shown")
RETRY = _script("retry", "anyway", "moves", "places", "links", "shown", "people")
SHOW = _script("show", "shown")
WHERE = _script("where")

# Moving tasks between stores.
PUT = _script("put", "moves", "places")
REMOVE = _script("remove", "moves", "places", "forgetting")

# Workers, queues, limits.
LIMIT = _script("limit", "anyway", "places")
NOTE = _script("note", "anyway")

# Upkeep.
DUE = _script("due")
EXPIRE = _script("expire", "anyway", "moves", "places", "links", "shown", "people")
PRUNE = _script("prune", "moves", "places", "links", "forgetting")
