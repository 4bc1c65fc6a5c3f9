"""What `bullpen.testing` offers, and what it costs."""

from __future__ import annotations

import subprocess
import sys

from bullpen import testing


def test_every_name_can_be_imported_and_is_listed() -> None:
    assert testing.__all__ == [
        "Enqueued",
        "HistoryFile",
        "HistoryObserver",
        "InvariantBroken",
        "ManualClock",
        "Plan",
        "Record",
        "RecordingStorage",
        "RuntimeContract",
        "ScriptedRuntime",
        "StorageContract",
        "Verdict",
        "arun_until_empty",
        "assert_enqueued",
        "assert_not_enqueued",
        "check",
        "crash_everywhere",
        "enqueued",
        "in_memory",
        "inline",
        "may_die",
        "note_resources",
        "read_history",
        "run_until_empty",
        "simulate",
        "take_stock",
    ]
    for name in testing.__all__:
        assert getattr(testing, name) is not None
        assert name in dir(testing)


def test_an_unknown_name_is_an_attribute_error() -> None:
    assert not hasattr(testing, "no_such_name")


def test_clock_and_scripted_runtime_need_no_test_framework() -> None:
    source = "import sys; from bullpen.testing import ManualClock, ScriptedRuntime; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", source], capture_output=True, text=True, check=True, timeout=30)
    assert {"pytest", "hypothesis"}.isdisjoint(done.stdout.split())
