"""The findings of the doctor as the pages show them: in words, with links to what they are about, and the action."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple
from urllib.parse import quote, urlencode

from bullpen.tasks.storage.port import HealthFinding


class FindingLink(NamedTuple):
    """A page that shows what a finding is about."""

    label: str
    path: str


class FindingAction(NamedTuple):
    """A button that ends what a finding is about."""

    label: str
    path: str
    field: str
    value: str


class Attention(NamedTuple):
    """A finding, its links, and its action if there is one."""

    finding: HealthFinding
    links: Sequence[FindingLink]
    action: FindingAction | None


def attention(findings: Iterable[HealthFinding]) -> list[Attention]:
    return [Attention(one, _links(one.kind, one.about), _action(one.kind, one.about)) for one in findings]


def _action(kind: str, about: Mapping[str, str]) -> FindingAction | None:
    if kind == "paused_queue":
        return FindingAction("Resume", "/queues/resume", "queue", about["queue"])
    return None


def _links(kind: str, about: Mapping[str, str]) -> list[FindingLink]:
    of_cause = {name: about[name] for name in ("fingerprint", "function") if name in about}
    match kind:
        case "paused_queue" | "unserved_queue" | "backlog":
            return [_tasks("Pending tasks", status="pending", queue=about["queue"]), FindingLink("Queues", "/queues")]
        case "reached_limit":
            running = _tasks("What runs", status="running", queue=about["queue"])
            pending = _tasks("What waits", status="pending", queue=about["queue"])
            return [running, pending, FindingLink("Limits", "/limits")]
        case "failing_function" | "rising_failures" | "new_failures" | "poison":
            failed = _tasks("Failed tasks", status="failed", **of_cause)
            again = FindingLink("Run again…", f"/bulk?{urlencode({'verb': 'retry', 'status': 'failed', **of_cause})}")
            return [_task("Latest task", about["task"]), failed, again, FindingLink("Failures", "/failures")]
        case "unknown_function":
            return [
                _tasks("Pending tasks", status="pending", **of_cause),
                FindingLink("Workers by functions", "/system"),
            ]
        case "lost_workers":
            ran = [_tasks("What it ran", worker=about["worker"])] if "worker" in about else []
            return [FindingLink("Workers", "/workers"), _tasks("Tasks that crashed", error="crash"), *ran]
        case "old_waits":
            return [_task("The task", about["task"]), FindingLink("Waits", "/waits")]
        case "unreadable_tasks" | "newer_tasks":
            return [_task("The task", about["task"])]
        case "expired_leases":
            return [_tasks("Running tasks", status="running")]
        case "no_workers":
            return [_tasks("Pending tasks", status="pending"), FindingLink("Workers", "/workers")]
        case "unreadable_limit":
            return [FindingLink("Limits", "/limits")]
        case "shared_queue":
            return [FindingLink("Workers by functions", "/system")]
        case "forgotten_failures":
            return [FindingLink("Failures of seven days", "/failures?days=7")]
    return []


def _tasks(label: str, **filters: str) -> FindingLink:
    return FindingLink(label, f"/tasks?{urlencode(filters)}")


def _task(label: str, task_id: str) -> FindingLink:
    return FindingLink(label, f"/tasks/{quote(task_id, safe='')}")
