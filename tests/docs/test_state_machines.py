"""docs/explanation/state-machines.md shows the tables as they are."""

from __future__ import annotations

import pkgutil

import pytest

from tests.docs.state_machines import MACHINES, PAGE, Machine, draw, redrawn

EACH_MACHINE = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == redrawn(page), "the tables have changed: run `python -m tests.docs.state_machines`"


@EACH_MACHINE
def test_every_move_says_what_makes_it(machine: Machine) -> None:
    assert set(machine.methods) == set(machine.steps())


@EACH_MACHINE
def test_what_makes_a_move_exists(machine: Machine) -> None:
    for method in machine.methods.values():
        if method is not None:
            assert callable(pkgutil.resolve_name(method)), method


def test_a_drawing_names_every_state_and_move() -> None:
    for machine in MACHINES:
        drawing = draw(machine)
        for old, new in machine.steps():
            assert f"    {old.value} --> {new.value}" in drawing
        assert all(state.value in drawing for state in machine.moves)


def test_a_page_without_its_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="generated: request"):
        redrawn("# State machines\n")
