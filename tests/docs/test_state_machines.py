"""docs/explanation/state-machines.md shows the tables as they are."""

from __future__ import annotations

import pkgutil

import pytest

from tests.docs.state_machines import DIAGRAMS, MACHINES, PAGE, Machine, draw, redrawn
from tests.docs.steps import Arrow

EACH_MACHINE = pytest.mark.parametrize("machine", MACHINES, ids=lambda machine: machine.name)


def test_the_page_is_up_to_date() -> None:
    page = PAGE.read_text()
    assert page == redrawn(page), "the tables have changed: run `python -m tests.docs.state_machines`"


@EACH_MACHINE
def test_every_move_says_what_makes_it(machine: Machine) -> None:
    assert set(machine.methods) == set(machine.steps())


EACH_DIAGRAM = pytest.mark.parametrize("arrows", DIAGRAMS.values(), ids=DIAGRAMS)


@EACH_DIAGRAM
def test_what_makes_a_move_exists(arrows: list[Arrow]) -> None:
    for arrow in arrows:
        if arrow.by is not None:
            assert callable(pkgutil.resolve_name(arrow.by)), arrow


@EACH_DIAGRAM
def test_a_drawing_names_every_state_and_move(arrows: list[Arrow]) -> None:
    drawing = draw(arrows)
    for arrow in arrows:
        assert f"    {arrow.old} --> {arrow.new}" in drawing


@EACH_MACHINE
def test_the_diagram_of_a_machine_has_all_moves_of_its_table(machine: Machine) -> None:
    drawn = {(arrow.old, arrow.new) for arrow in DIAGRAMS[machine.name]}
    assert drawn >= {(old.value, new.value) for old, new in machine.steps()}


@EACH_DIAGRAM
def test_every_arrow_has_a_name_of_its_own(arrows: list[Arrow]) -> None:
    assert len({arrow.id for arrow in arrows}) == len(arrows)


@EACH_DIAGRAM
def test_every_entered_state_is_left_or_final(arrows: list[Arrow]) -> None:
    """Every state that is entered is left again, or final."""
    entered = {arrow.new for arrow in arrows}
    assert entered <= {arrow.old for arrow in arrows} | {"[*]"}


def test_a_page_without_its_marks_is_an_error() -> None:
    with pytest.raises(ValueError, match="generated: request"):
        redrawn("# State machines\n")
