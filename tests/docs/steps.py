"""What pools and workers do while they stay in a state, the way of a request through a pool, and the queue: as steps.

Together with the tables of `pools/dispatch/states.py` they are the arrows of four diagrams: a pool's life, a request's
execution, a worker's availability, the queue. The docs draw them, and `tests.scenarios.test_seed_state_machine` drives
every single one.
"""

from __future__ import annotations

from dataclasses import dataclass

START = END = "[*]"

REQUEST = "bullpen.pools.dispatch.request.Request"
DISPATCHER = "bullpen.pools.dispatch.dispatcher.Dispatcher"
BOUNDED = "bullpen.pools.dispatch.backlog.BoundedBacklog"
SESSIONS = "bullpen.pools.dispatch.sessions.Sessions"
ENGINE = "bullpen.pools.supervision.engine.Engine"
STATUS = "bullpen.pools.dispatch.pool_status.PoolStatus"
ADMISSION = "bullpen.pools.supervision.admission.Admission"
OUTCOMES = "bullpen.pools.supervision.outcomes.ForcedOutcomes"
SIZING = "bullpen.pools.supervision.sizing.Sizing"
STARTER = "bullpen.pools.supervision.starting.WorkerStarter"
STARTUP = "bullpen.pools.supervision.startup.Startup"
POOLS = "bullpen.pools.pools.Pools"
RETRIES = "bullpen.pools.supervision.retries.Retries"
TASK = "bullpen.tasks.model.task"


@dataclass(frozen=True)
class Arrow:
    """One step: from where to where, when, and what makes it; None for one that nothing makes yet."""

    diagram: str
    old: str
    new: str
    when: str
    by: str | None

    @property
    def id(self) -> str:
        return f"{self.diagram}: {self.old} -> {self.new}" + (f", {self.when}" if self.when else "")


def _steps(diagram: str, *steps: tuple[str, str, str, str]) -> list[Arrow]:
    return [Arrow(diagram, *step) for step in steps]


POOL_STAYS = _steps(
    "pool",
    ("initializing", "initializing", "a worker of several is ready", f"{STARTUP}.worker_is_ready"),
    ("initializing", "initializing", "workers start in batches", f"{SIZING}.fill_minimum"),
    ("initializing", "initializing", "requests wait", f"{ADMISSION}.admit"),
    ("running", "running", "requests run", f"{ADMISSION}.admit"),
    ("running", "running", "workers are taken and given back", f"{DISPATCHER}.finished"),
    ("running", "running", "requests wait", f"{DISPATCHER}.offer"),
    ("running", "running", "a dead worker is replaced", f"{SIZING}.fill_minimum"),
    ("running", "running", "reconcile", f"{SIZING}.reconcile"),
    ("draining", "draining", "waiting requests still run", f"{DISPATCHER}.finished"),
)

WORKER_STAYS = _steps(
    "worker",
    ("ready", "ready", "takes one and has room left", f"{DISPATCHER}.reserve_ready_worker"),
    ("busy", "busy", "gives one back and takes the next", f"{DISPATCHER}.finished"),
    ("dead", "starting", "its slot has another worker", f"{STARTER}.spawn"),
)

TASK_WAYS = _steps(
    "task",
    ("running", "pending", "it failed and has tries left", f"{TASK}.fail"),
    ("running", "pending", "its worker died, fewer than three times", f"{TASK}.crash"),
    ("running", "pending", "a run of many is complete", f"{TASK}.succeed"),
    ("running", "pending", "this worker does not know its function", f"{TASK}.postpone"),
    ("running", "failed", "its worker died for the third time, or it may run only once", f"{TASK}.crash"),
    ("running", "failed", "no worker can ever run it", f"{TASK}.fail_permanently"),
    ("running", "running", "it is asked to stop", f"{TASK}.cancelled_by_operator"),
    ("success", END, "", f"{TASK}.settled"),
    ("failed", END, "", f"{TASK}.settled"),
    ("cancelled", END, "", f"{TASK}.settled"),
)

EXECUTION = _steps(
    "execution",
    (START, "received", "submit, serve, do", f"{ADMISSION}.admit"),
    ("received", "check_pool", "with or without a name", f"{POOLS}.pool"),
    ("check_pool", "not_found", "no pool of that name", f"{POOLS}.pool"),
    ("not_found", END, "PoolNotFound", f"{POOLS}.pool"),
    ("check_pool", "not_open", "it closes, is closed or has failed", f"{STATUS}.not_open"),
    ("not_open", END, "PoolClosed or PoolFailed", f"{STATUS}.not_open"),
    ("check_pool", "check_worker", "it accepts requests", f"{ADMISSION}.admit"),
    ("check_worker", "session_affinity", "it has a session", f"{ADMISSION}.admit"),
    ("check_worker", "select_any", "it has none", f"{DISPATCHER}.offer"),
    ("session_affinity", "select_any", "the session has no worker yet", f"{SESSIONS}.use"),
    ("session_affinity", "select_any", "its worker is gone, and the affinity is hint", f"{SESSIONS}.rebind"),
    ("session_affinity", "unavailable", "its worker is gone, and the affinity is strict", f"{ADMISSION}.admit"),
    ("unavailable", END, "SessionWorkerUnavailable", f"{ADMISSION}.admit"),
    ("session_affinity", "use_preferred", "its worker has room", f"{DISPATCHER}.offer_pinned"),
    ("session_affinity", "affinity_mode", "its worker is busy", f"{DISPATCHER}.offer_pinned"),
    ("affinity_mode", "select_any", "hint", f"{ADMISSION}.admit"),
    ("affinity_mode", "queue_for_worker", "strict_queue", f"{DISPATCHER}.offer_pinned"),
    ("affinity_mode", "fail_fast", "strict_fail_fast", f"{ADMISSION}.admit"),
    ("fail_fast", END, "WorkerBusy", f"{ADMISSION}.admit"),
    ("queue_for_worker", "queued", "in the line of its worker", f"{DISPATCHER}.offer_pinned"),
    ("select_any", "use_worker", "a worker is ready", f"{DISPATCHER}.reserve_ready_worker"),
    ("select_any", "start_worker", "a slot is free", f"{DISPATCHER}.grow"),
    ("select_any", "check_queue", "neither", f"{BOUNDED}.take_place"),
    ("check_queue", "queued", "the backlog has room", f"{BOUNDED}.take_place"),
    ("check_queue", "saturated", "full, and when_full is reject", f"{ADMISSION}.saturated_error"),
    ("saturated", END, "PoolSaturated, or False from serve", f"{ADMISSION}.saturated_error"),
    ("check_queue", "wait_for_room", "full, and when_full is block", f"{BOUNDED}.take_ticket"),
    ("wait_for_room", "queued", "a request left the backlog", f"{BOUNDED}.call_next"),
    ("use_preferred", "executing", "", f"{SESSIONS}.start"),
    ("use_worker", "executing", "", f"{REQUEST}.start"),
    ("start_worker", "executing", "the worker is ready", f"{DISPATCHER}.started"),
    ("queued", "queue_timeout", "queue_timeout or timeout passed", f"{REQUEST}.expire"),
    ("queue_timeout", END, "QueueTimeout or DeadlineExceeded", f"{REQUEST}.expire"),
    ("queued", "withdrawn", "cancelled", f"{REQUEST}.cancel_queued"),
    ("withdrawn", END, "CancelledError", f"{REQUEST}.cancel_queued"),
    ("queued", "dequeued", "a worker has room", f"{DISPATCHER}.finished"),
    ("dequeued", "executing", "", f"{REQUEST}.start"),
    ("executing", "success", "it returned", f"{REQUEST}.settle"),
    ("executing", "error", "it raised", f"{REQUEST}.settle"),
    ("executing", "given_up", "run_timeout or timeout passed", f"{REQUEST}.abandon"),
    ("executing", "crash_retry", "its worker died, and it is idempotent", f"{RETRIES}.keep"),
    ("crash_retry", "executing", "it runs again on another worker, after a delay", f"{REQUEST}.requeue"),
    ("crash_retry", "lost", "crash_retries are used up", f"{REQUEST}.lose"),
    ("executing", "lost", "its worker died", f"{REQUEST}.lose"),
    ("lost", END, "WorkerLost", f"{REQUEST}.lose"),
    ("success", "checkin", "its worker has room again", f"{DISPATCHER}.finished"),
    ("error", "checkin", "its worker has room again", f"{DISPATCHER}.finished"),
    ("given_up", "checkin", "its function returned after all", f"{DISPATCHER}.finished"),
    ("checkin", "drive_queue", "the worker takes the oldest request that it may run", f"{DISPATCHER}.finished"),
    ("drive_queue", END, "the result, the error, or the timeout", f"{REQUEST}.settle"),
)

QUEUE = _steps(
    "queue",
    (START, "empty", "", f"{ENGINE}.start"),
    ("empty", "has_requests", "a request has to wait", f"{DISPATCHER}.offer"),
    ("has_requests", "has_requests", "another one has to wait", f"{DISPATCHER}.offer"),
    ("has_requests", "empty", "the last one leaves", f"{DISPATCHER}.finished"),
    (START, "waiting", "it is queued", f"{DISPATCHER}.offer"),
    ("waiting", "timed_out", "queue_timeout or timeout passed", f"{REQUEST}.expire"),
    ("timed_out", "dropped", "its function and arguments are released at once", f"{REQUEST}.expire"),
    ("waiting", "dropped", "cancelled", f"{REQUEST}.cancel_queued"),
    ("waiting", "dropped", "no worker can run it", f"{OUTCOMES}.fail_waiting"),
    ("dropped", END, "it never runs", f"{DISPATCHER}.queued"),
    ("waiting", "processing", "a worker takes the oldest", f"{REQUEST}.start"),
    ("processing", "completed", "it ended", f"{REQUEST}.settle"),
    ("completed", END, "", f"{REQUEST}.settle"),
)
