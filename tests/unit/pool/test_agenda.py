from __future__ import annotations

import logging
import math

import pytest

from bullpen.pool.agenda import Agenda


def test_what_is_due_is_done_once_the_earliest_first() -> None:
    agenda, done = Agenda(), list[str]()
    agenda.enter(3.0, lambda: done.append("third"))
    agenda.enter(1.0, lambda: done.append("first"))
    agenda.enter(1.0, lambda: done.append("second"))
    agenda.enter(9.0, lambda: done.append("not yet"))
    assert agenda.next_at == 1.0
    agenda.carry_out(0.5)
    assert done == []
    agenda.carry_out(3.0)
    agenda.carry_out(3.0)
    assert done == ["first", "second", "third"]
    assert (agenda.next_at, len(agenda)) == (9.0, 1)


def test_what_is_entered_meanwhile_is_done_too_if_it_is_due() -> None:
    agenda, done = Agenda(), list[str]()

    def first() -> None:
        agenda.enter(1.0, lambda: done.append("at once"))
        agenda.enter(2.0, lambda: done.append("later"))

    agenda.enter(1.0, first)
    agenda.carry_out(1.0)
    assert done == ["at once"]
    assert agenda.next_at == 2.0


class Chime:
    """Enters itself again each time."""

    def __init__(self, agenda: Agenda) -> None:
        self.agenda = agenda
        self.struck = 0

    def strike(self) -> None:
        self.struck += 1
        self.agenda.enter_once(self.struck + 1.0, self.strike)


def test_what_is_entered_once_stands_there_once_however_often_it_is_asked_for() -> None:
    agenda = Agenda()
    chime = Chime(agenda)
    assert agenda.enter_once(1.0, chime.strike)
    assert not agenda.enter_once(0.5, chime.strike)
    assert agenda.enter_once(1.0, Chime(agenda).strike)
    agenda.carry_out(3.0)
    assert chime.struck == 3
    assert len(agenda) == 2


def test_an_action_that_fails_is_logged_and_harms_no_other(caplog: pytest.LogCaptureFixture) -> None:
    agenda, done = Agenda(), list[str]()
    agenda.enter(1.0, lambda: 1 // 0)
    agenda.enter(2.0, lambda: done.append("second"))
    with caplog.at_level(logging.ERROR, "bullpen"):
        agenda.carry_out(2.0)
    assert done == ["second"]
    assert "ZeroDivisionError" in caplog.text


@pytest.mark.parametrize("emptied", [Agenda.clear, Agenda.forget])
def test_nothing_is_left_of_an_agenda_that_was_cleared(emptied: object) -> None:
    agenda = Agenda()
    chime = Chime(agenda)
    agenda.enter(1.0, chime.strike)
    agenda.enter_once(1.0, chime.strike)
    assert callable(emptied)
    emptied(agenda)
    agenda.carry_out(5.0)
    assert (chime.struck, agenda.next_at) == (0, math.inf)
    assert agenda.enter_once(1.0, chime.strike), "it could never be entered again"
