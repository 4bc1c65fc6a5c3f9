from __future__ import annotations

from bullpen.cli.demo.tasks import Meter


def test_a_meter_gives_one_rate_per_step() -> None:
    meter = Meter(step=0.5)
    for elapsed, ended in [(0.1, 3), (0.4, 9), (0.5, 10), (0.9, 20), (1.5, 30)]:
        meter.read(elapsed, ended)
    assert meter.rates == [20.0, 20.0]
