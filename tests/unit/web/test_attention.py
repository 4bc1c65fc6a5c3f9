"""Each finding leads to the pages that show it, and to the action that ends it."""

from __future__ import annotations

import pytest

from bullpen.cli.diagnosis import problem, warning
from bullpen.tasks.storage.port import HealthFinding
from bullpen.web.attention import FindingAction, attention
from bullpen.web.views import find_view

CAUSE = {"function": "app.send", "fingerprint": "a1", "task": "id/1"}


@pytest.mark.parametrize(
    ("finding", "first"),
    [
        (warning("paused_queue", "", "", queue="a&b"), "/tasks?status=pending&queue=a%26b"),
        (warning("reached_limit", "", "", queue="mail"), "/tasks?status=running&queue=mail"),
        (warning("poison", "", "", **CAUSE), "/tasks/id%2F1"),
        (warning("failing_function", "", "", **CAUSE), "/tasks/id%2F1"),
        (warning("rising_failures", "", "", **CAUSE), "/tasks/id%2F1"),
        (warning("new_failures", "", "", **CAUSE), "/tasks/id%2F1"),
        (warning("lost_workers", "", "", worker="w"), "/workers"),
        (warning("lost_workers", "", ""), "/workers"),
        (problem("no_workers", "", ""), "/tasks?status=pending"),
        (problem("unserved_queue", "", "", queue="mail"), "/tasks?status=pending&queue=mail"),
        (problem("unknown_function", "", "", function="app.send"), "/tasks?status=pending&function=app.send"),
        (problem("unreadable_limit", "", "", queue="mail"), "/limits"),
        (problem("unreadable_tasks", "", "", task="id"), "/tasks/id"),
        (warning("newer_tasks", "", "", task="id"), "/tasks/id"),
        (warning("old_waits", "", "", task="id", event="e"), "/tasks/id"),
        (warning("backlog", "", "", queue="mail"), "/tasks?status=pending&queue=mail"),
        (warning("expired_leases", "", ""), "/tasks?status=running"),
        (warning("shared_queue", "", ""), "/system"),
        (warning("forgotten_failures", "", ""), "/failures?days=7"),
    ],
)
def test_a_finding_has_links_to_pages_that_exist(finding: HealthFinding, first: str) -> None:
    (one,) = attention([finding])
    assert one.links[0].path == first
    assert all(find_view(link.path.partition("?")[0]) for link in one.links)


def test_a_paused_queue_is_resumed_where_it_is_named() -> None:
    (one,) = attention([warning("paused_queue", "", "", queue="mail")])
    assert one.action == FindingAction("Resume", "/queues/resume", "queue", "mail")
