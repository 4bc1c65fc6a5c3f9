from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from bullpen.cli.terminal import output
from bullpen.cli.terminal.screen import StyledText, plain
from bullpen.tasks.model.info import info_of
from bullpen.tasks.model.task import AttemptError, Task, TaskStatus

NOW = datetime(2030, 1, 1, tzinfo=UTC)


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0, "0 ms"),
        (0.0404, "40 ms"),
        (0.9994, "999 ms"),
        (0.9996, "1.0 s"),
        (9.94, "9.9 s"),
        (119, "119 s"),
        (120, "2 min"),
        (7199, "120 min"),
        (7200, "2 h"),
        (200_000, "2 d"),
        (-3, "3.0 s"),
    ],
)
def test_durations_in_one_unit(seconds: float, said: str) -> None:
    assert output.duration(seconds) == said


def test_text_is_wrapped_in_a_terminal_only(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "20 tasks are pending in the queue 'mail-eu', which is paused"
    monkeypatch.delenv("COLUMNS", raising=False)
    assert output.wrapped(words, by=2) == [words]
    monkeypatch.setenv("COLUMNS", "40")
    assert output.wrapped(words, by=2) == ["20 tasks are pending in the queue", "'mail-eu', which is paused"]


def test_instants_beside_now() -> None:
    assert output.when(NOW + timedelta(seconds=3), NOW) == "in 3.0 s"
    assert output.when(NOW - timedelta(minutes=5), NOW) == "5 min ago"
    assert output.when(NOW, NOW) == "0 ms ago"


def test_columns_are_as_wide_as_what_is_in_them_and_numbers_to_the_right() -> None:
    rows = [
        [StyledText("a"), StyledText("7"), StyledText("x")],
        [StyledText("longer"), StyledText("1000"), StyledText("")],
    ]
    assert [plain(line) for line in output.table(("name", "n", "note"), rows)] == [
        "name       n  note",
        "a          7  x",
        "longer  1000",
    ]


def task(**fields: Any) -> Any:
    return info_of(Task(id="1", func_path="app.f", payload=b"", **fields))


@pytest.mark.parametrize(
    ("fields", "said"),
    [
        ({}, "○ pending"),
        ({"eta": NOW.timestamp() + 5}, "◷ scheduled"),
        ({"eta": NOW.timestamp() + 5, "failures": 1}, "↻ retrying"),
        ({"status": TaskStatus.RUNNING}, "◐ running"),
        ({"status": TaskStatus.RUNNING, "cancel_requested": True}, "◐ stopping"),
        ({"status": TaskStatus.FAILED, "failures": 2}, "✕ failed"),
    ],
)
def test_a_state_is_a_glyph_and_a_word(fields: dict[str, Any], said: str) -> None:
    assert output.state(task(**fields), NOW).text == said


def test_json_has_iso_instants_and_seconds() -> None:
    now = NOW.timestamp()
    error = AttemptError(kind="exception", attempt=1, at=now, type="ValueError", message="é", started_at=now)
    told = output.as_json(task(timeout=1.5, errors=(error,), created_at=NOW.timestamp(), headers={"a": "b"}))
    assert json.loads(json.dumps(told)) == told
    assert told["created_at"] == "2030-01-01T00:00:00.000+00:00"
    assert told["timeout"] == 1.5
    assert told["status"] == "pending"
    assert told["errors"][0]["at"] == "2030-01-01T00:00:00.000+00:00"
    assert told["errors"][0]["started_at"] == "2030-01-01T00:00:00.000+00:00"
    assert told["headers"] == {"a": "b"}
    assert "payload" not in told


def test_colours_are_for_terminals_that_want_them(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    line = (StyledText("bad", "bad"),)
    output.show([line])
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.delenv("NO_COLOR", raising=False)
    output.show([line])
    monkeypatch.setenv("NO_COLOR", "1")
    output.show([line])
    assert capsys.readouterr().out == "bad\n\x1b[31mbad\x1b[0m\nbad\n"


ATTACK = "x\x1b]0;owned\x07\n✓ success\u202e\x9b2J\ud800"


def test_no_control_character_reaches_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    rows = [[StyledText(ATTACK), StyledText("1")], [StyledText("ok"), StyledText("2")]]
    output.show([*output.table(("name", "n"), rows), *output.facts([(ATTACK, ATTACK)]), output.text(ATTACK)])
    shown = capsys.readouterr().out.splitlines()
    assert len(shown) == 5
    assert all(line.isprintable() for line in shown)
    assert {line.rstrip()[-1] for line in shown[1:3]} == {"1", "2"}
    assert len({len(line) for line in shown[:3]}) == 1  # the columns are as wide as what is shown


def test_json_escapes_what_a_terminal_would_obey(capsys: pytest.CaptureFixture[str]) -> None:
    output.show_json({ATTACK: [ATTACK, "é"]})
    shown = capsys.readouterr().out
    assert json.loads(shown) == {ATTACK: [ATTACK, "é"]}
    assert shown.replace("\n", "").isprintable()
    assert "é" in shown
