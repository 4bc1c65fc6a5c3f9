"""How the log of a worker writes times."""

from __future__ import annotations

import pytest

from bullpen.tasks.worker.reports import seconds_text


@pytest.mark.parametrize(
    ("delay", "text"),
    [(0.05123, "0.0512 s"), (1, "1 s"), (63.71, "63.7 s"), (999.4, "999 s"), (999.6, "1000 s"), (3600, "3600 s")],
)
def test_a_delay_is_written_with_three_digits_and_without_an_exponent(delay: float, text: str) -> None:
    assert seconds_text(delay) == text
