"""The way from a call to its result gets no longer."""

from __future__ import annotations

import sys

import pytest

from tests.ratchets.bounds import JOURNEYS as BOUNDS
from tests.ratchets.bounds import JourneyBound
from tests.ratchets.journeys import JOURNEYS, Figures, figures_of, trace

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="workers and signals as on Linux")


@pytest.fixture(scope="module")
def measured() -> dict[str, Figures]:
    """What has been measured by the tests of this file, so that each journey is traced once."""
    return {}


def measure(journey: str, measured: dict[str, Figures]) -> Figures:
    if journey not in measured:
        measured[journey] = figures_of(trace(journey))
    return measured[journey]


@pytest.mark.parametrize("journey", JOURNEYS)
def test_a_journey_gets_no_longer(journey: str, measured: dict[str, Figures]) -> None:
    assert not (problem := excess(journey, measure(journey, measured), BOUNDS[journey])), problem


@pytest.mark.parametrize("journey", JOURNEYS)
def test_the_bound_of_a_journey_follows_it_down(journey: str, measured: dict[str, Figures]) -> None:
    assert not (problem := looseness(journey, measure(journey, measured), BOUNDS[journey])), problem


def excess(journey: str, figures: Figures, bound: JourneyBound) -> str:
    if figures.calls <= bound.calls and figures.files <= bound.files:
        return ""
    return (
        f"{journey}: {figures.calls} calls in {figures.files} files, and the bound is {bound.calls} in {bound.files}; "
        f"`python -m tests.ratchets.journeys {journey}` prints the route"
    )


def looseness(journey: str, figures: Figures, bound: JourneyBound) -> str:
    if figures.calls >= bound.calls - bound.slack and figures.files >= bound.files:
        return ""
    calls = min(bound.calls, figures.calls + bound.slack // 2)
    files = min(bound.files, figures.files)
    return f"{journey} is shorter now: lower the bound in tests/ratchets/bounds.py to calls={calls}, files={files}"


BOUND = JourneyBound(calls=100, files=10, slack=5, aim=(50, 5))


@pytest.mark.parametrize("figures", [Figures(101, 10), Figures(100, 11)])
def test_a_longer_journey_is_found(figures: Figures) -> None:
    assert "the bound is 100 in 10" in excess("submit", figures, BOUND)
    assert not looseness("submit", Figures(100, 10), BOUND)


@pytest.mark.parametrize(
    ("figures", "lower"),
    [(Figures(94, 10), "calls=96, files=10"), (Figures(100, 9), "calls=100, files=9"), (Figures(95, 10), "")],
)
def test_a_loose_bound_is_found(figures: Figures, lower: str) -> None:
    assert looseness("submit", figures, BOUND).endswith(lower)
    assert bool(looseness("submit", figures, BOUND)) is bool(lower)
    assert not excess("submit", figures, BOUND)
