"""The Lua scripts, and the keys that they read and write.

Why scripts
    A verb of the store changes several keys: a claim moves a task from one index to another, rewrites its state and
    counts it elsewhere. Redis runs a script alone, from its first command to its last. So every verb is one script, and
    a client never sees half of a verb. A script also reads the clock of the server, so clocks of hosts do not matter.
    Redis does not roll a failed script back. A script can fail if the memory of the server is full, but Redis rejects
    only its first write, so either all writes happen or none (`parts/write_when_full.lua` uses that).
    Scripts are safe to repeat if the connection is lost, except `exchange.lua`: a repeated claim would claim more.
    After a lost reply, a worker asks `find_claim.lua` for the tasks of its claim id.

Rules
    `tasks/model/task.py` decides what a task becomes. A script repeats a rule only where the decision needs values that
    must not change before the write. The head of each script names the rule, and the tests that hold the script to it:
    classes of `bullpen.testing.storage_contract`, unless it says otherwise.

Keys
    All keys of a queue begin with its tag, `{prefix:queue}`. The tag is the first key of every script.

    :body         hash by id: `rows.TaskBody`, packed. Scripts copy it, but never read it
    :state        hash by id: `rows.TaskState`, packed. Scripts read and write it
    :result       hash by id: the result
    :depends_on   hash by id: the ids that the task depends on, packed. Ended ones are counted in the state only
    :steps:ID     hash by name: the kept steps of a task, each JSON
    :awaiting     sorted set: the event that an unfinished task awaits, a NUL, and its id
    :damaged      hash by id: a state that another program has overwritten, as it was found
    :ids          all ids, in order
    :ready:P      pending tasks of priority P without a concurrency key, by eta
    :keyed:P      pending tasks of priority P with a concurrency key, by eta
    :keyed:P:KEY  those of one concurrency key, without schedules
    :keys:P       the concurrency keys that have a :keyed:P:KEY
    :regular:P    pending schedules of priority P with a concurrency key, by eta
    :running      running tasks, by the end of their lease. The lease is kept nowhere else
    :finished     finished tasks, by the time at which they may be pruned
    :failed       failed tasks, in the order of ids
    :expiring     pending tasks with a deadline for their start, by that
    :busy         hash by concurrency key: how many tasks run
    :order:KEY    unfinished tasks of a concurrency key, by the time of their creation, without schedules
    :unique       hash by unique key: the last task that held it
    :counts       hash by status: how many tasks there are. Running tasks are counted by :running
    :limits       hash: the limits of the queue, and whether it is paused
    :starts       recent starts by time, in a queue with a rate

    prefix:queues   the names of all queues. The script that writes the first task or limit of a queue adds it
    prefix:workers  hash by worker id: `port.WorkerRecord`
    prefix:history:STEP:BLOCK
                    hash by instant, queue and function: counts of the steps of one block, as JSON. It expires
    prefix:failures:DAY
                    hash by hour, queue, function and fingerprint: `FailureRow`s of a day, as JSON. It expires
    {prefix:}:events
                    hash by name: the events, each the instant at which it came, the end of its time to live, and its
                    payload. `:ends` has the names by that end. `:looks` has a name, a NUL and a unique id for each
                    client that wakes the tasks of an event, by the time at which it began (`events.py`)
    prefix:news     channel: `w` and the name of a queue in which a task may start
    prefix:news:ends, prefix:news:ID:ends
                    channels: `r` and the id of a task that has ended, or `e` and the name of an event that has come.
                    ID is one client's own

Writers
    Producers (`add*.lua`) write :body, :state, :ids and the indexes of a pending task. Workers (`exchange.lua`,
    `renew_leases.lua`) write :state, :result and the indexes. `parts/indexes.lua` is the only place that knows which
    indexes a state belongs to; `add_one.lua` and `add_plain.lua` write out its simplest case. Clients write no key of a
    task without a script.

Packed values
    A state is an array in msgpack, in the order of the fields of `rows.TaskState`. Scripts use the fields' names in
    capitals, and this module replaces them with numbers. Lua has no None in arrays, so a state has 0, -1 or '' instead.
    Lua's msgpack does not tell bytes from text, so bytes are arguments of their own.
    Times are written with 17 digits (`exact`), so that a score is the same number as the field.

Damage
    Another program may have written to the keys. A script replaces a state that it cannot use (`parts/common.lua`).
    If a script fails, because a key has another type or a count is no number, the connection runs `repair.lua`.

Clusters
    A cluster keeps all keys with the same text in curly brackets on one node, and a script may touch keys of one node
    only. So each queue is on one node, with all its tasks. The prefix may have curly brackets itself: then the tag is
    `prefix:queue`, and all queues are on the same node. The list of queues may be on another node than a queue; then a
    script cannot write it, says so, and the client does. Tasks can depend on each other only on one node.

Cost
    A call from Lua to Redis costs more than Lua itself, so a script touches each key once for all tasks. A local
    function costs time whenever a script starts, so a part that is seldom needed stands in the branch that needs it.
"""

from __future__ import annotations

import hashlib
import re
from functools import cached_property
from pathlib import Path

from bullpen.tasks.model.history import MAX_COUNTED
from bullpen.tasks.model.ids import SCHEDULES
from bullpen.tasks.model.links import GIVEN_UP
from bullpen.tasks.model.task import ERRORS_KEPT, MAX_COUNT, MAX_LEASE, NEVER, NOT_IN_TIME, UNPLANNED
from bullpen.tasks.storage.port import MAX_LIMIT, MIN_RATE
from bullpen.tasks.storage.redis.rows import TaskBody, TaskState, default_state_in_lua

# The values of names in scripts. A local variable would cost time whenever a script starts.
_CONSTANTS: dict[str, object] = {
    "DEFAULT_STATE": default_state_in_lua(),
    **{name.upper(): number for number, name in enumerate(TaskState.__struct_fields__, start=1)},
    "BEHIND_PAYLOAD": TaskBody.__struct_fields__.index("headers") - TaskBody.__struct_fields__.index("payload"),
    "ERRORS_KEPT": ERRORS_KEPT,
    "MAX_COUNT": MAX_COUNT,
    "MAX_LEASE": MAX_LEASE,
    "MAX_LIMIT": MAX_LIMIT,
    "MIN_RATE": MIN_RATE,
    "MAX_COUNTED": MAX_COUNTED,
    "UNPLANNED": UNPLANNED,
    "LAST_DAY": NEVER,
    "GIVEN_UP": GIVEN_UP,
    "SCHEDULES": f"'{SCHEDULES}'",
    "NOT_IN_TIME": f"'{NOT_IN_TIME}'",
}
_NAME = re.compile(rf"\b({'|'.join(_CONSTANTS)})\b")

_WITH = re.compile(r"^ *-- WITH (.+)$", re.MULTILINE)

_LUA = Path(__file__).with_name("lua")


class Script:
    """One script. Its text is read when it is first used: a process uses a few of them."""

    def __init__(self, name: str, *, key: str = "", again: bool = True) -> None:
        self.name = name
        self.key = key  # the type of its key, if that is no tag of a queue
        self.again = again  # it may run again if it has failed in the midst

    @cached_property
    def text(self) -> str:
        """The text for the server: each line `-- WITH part part …` is replaced by these parts, in this order."""

        def parts(found: re.Match[str]) -> str:
            return "\n".join(_text(f"parts/{part}.lua") for part in found[1].split())

        return _NAME.sub(lambda found: str(_CONSTANTS[found[0]]), _WITH.sub(parts, _text(f"{self.name}.lua")))

    @cached_property
    def digest(self) -> str:
        """The name under which the server keeps the script."""
        return hashlib.sha1(self.text.encode(), usedforsecurity=False).hexdigest()


def _text(path: str) -> str:
    return (_LUA / path).read_text("utf-8")


# Producers.
ADD = Script("add", again=False)
ADD_ONE = Script("add_one", again=False)
ADD_PLAIN = Script("add_plain", again=False)

# Workers.
EXCHANGE = Script("exchange", again=False)
FIND_CLAIM = Script("find_claim")
NEXT_START = Script("next_start")
FIND_LOST = Script("find_lost")
PREVIEW_CLAIM = Script("preview_claim")
SAVE_STEP = Script("save_step")
SAVE_PROGRESS = Script("save_progress")
RENEW_LEASES = Script("renew_leases")

# Reading and changing tasks.
WAIT_FOR_RESULT = Script("wait_for_result")
CANCEL = Script("cancel")
CHANGE = Script("change")
CHANGE_BATCH = Script("change_batch")
COUNT = Script("count")
FIRST_PENDING = Script("first_pending")
LIST_PENDING = Script("list_pending")
DELETE = Script("delete")
LIST_TASKS = Script("list_tasks")
RETRY = Script("retry")
GET_TASKS = Script("get_tasks")
LOCATE = Script("locate")

# Moving tasks between stores.
IMPORT_TASKS = Script("import_tasks", again=False)
EXPORT_TASKS = Script("export_tasks")

# Worker records and limits of queues.
SET_LIMITS = Script("set_limits")
SAVE_WORKER = Script("save_worker", key="hash")
LIST_QUEUE = Script("list_queue")

# History.
ADD_HISTORY = Script("add_history", key="hash")
ADD_FAILURES = Script("add_failures", key="hash")

# Events.
EMIT = Script("emit", key="hash")
PRUNE_EVENTS = Script("prune_events", key="hash")
WAKE = Script("wake")

# Upkeep.
QUEUES_DUE = Script("queues_due")
EXPIRE = Script("expire")
PRUNE = Script("prune")
REPAIR = Script("repair")
