"""The words of a benchmark: a suite has works, a work has contestants and metrics, and some metrics have a bar."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, Literal, Protocol

OURS = "bullpen"

Measure = Callable[[Any], Mapping[str, float]]
"""One measurement, given the sizes of its suite: figures by the keys of the work's metrics."""


class Sizes(Protocol):
    """How much one measurement does; a frozen dataclass of the suite."""

    @property
    def rounds(self) -> int: ...


@dataclass(frozen=True, slots=True)
class Peer:
    """A library that takes part: its name in the report, the object it needs, its package, and how it is opened."""

    name: str
    requires: str
    distribution: str | None
    install: str | None
    opened_as: str
    open: Callable[[], Any] = lambda: None
    is_rival: bool = True  # False for raw statements, which are no library


@dataclass(frozen=True, slots=True)
class Metric:
    """One figure of a work. Every metric is compared as a ratio to the work's reference, in the same round."""

    key: str
    title: str
    unit: str
    better: Literal["higher", "lower"]


@dataclass(frozen=True, slots=True)
class Contestant:
    """A peer with the settings and the calls it takes part with."""

    label: str
    peer: Peer
    settings: str
    measure: Measure


@dataclass(frozen=True, slots=True)
class Work:
    """One comparison. The reference of all ratios is the first contestant, or the best peer of this run. The bars
    judge Bullpen, the last contestant, unless a bar names another one.

    The title may name the fields of the suite's sizes: `{tasks:,} no-ops`.
    """

    name: str
    title: str
    metrics: tuple[Metric, ...]
    contestants: tuple[Contestant, ...]
    reference: Literal["first", "best"] = "first"

    @property
    def rivals(self) -> tuple[Contestant, ...]:
        """One of them is the reference."""
        if self.reference == "first":
            return self.contestants[:1]
        return tuple(one for one in self.contestants if one.peer.is_rival and one.peer.name != OURS)

    @property
    def floor(self) -> Contestant | None:
        """The raw statements beside which a work with the best peer as its reference stands."""
        return next((one for one in self.contestants if not one.peer.is_rival), None)

    @property
    def judged(self) -> Contestant | None:
        """None when a filter has left Bullpen out."""
        last = self.contestants[-1]
        return last if last.peer.name == OURS else None

    def describe(self, sizes: Sizes) -> str:
        return self.title.format(**asdict(sizes))  # type: ignore[call-overload]


@dataclass(frozen=True, slots=True)
class Bar:
    """A promise: the median over the rounds, rounded to the two digits that are printed, reaches `limit`.

    Of the ratios to the reference, or of the figure itself. `beside` names the contestants the best of which is the
    reference for this bar alone. `judges` names the contestant that has to reach it, if that is not the last one.
    """

    work: str
    metric: str
    limit: float
    of: Literal["ratio", "value"] = "ratio"
    beside: tuple[str, ...] = ()
    judges: str = ""


@dataclass(frozen=True, slots=True)
class Suite:
    """Works that are measured together, and notes about all of them."""

    name: str
    title: str  # of the chart
    higher: str  # its panel of figures that should be large …
    lower: str  # … and of figures that should be small
    works: tuple[Work, ...]
    bars: tuple[Bar, ...]
    full: Sizes
    quick: Sizes
    settings: Callable[[], Mapping[str, str]]  # shared by all contestants
    notes: tuple[str, ...] = ()  # contestants that are missing from a work, and why

    def bars_of(self, work: Work, metric: Metric, contestant: Contestant) -> tuple[Bar, ...]:
        return tuple(
            bar
            for bar in self.bars
            if (bar.work, bar.metric) == (work.name, metric.key)
            and (contestant.label == bar.judges if bar.judges else contestant is work.judged)
        )

    def find(self, work_name: str, label: str) -> Contestant:
        return next(
            contestant
            for work in self.works
            if work.name == work_name
            for contestant in work.contestants
            if contestant.label == label
        )

    def peers(self) -> list[Peer]:
        """Each peer once, by the object that it requires."""
        found = {contestant.peer.requires: contestant.peer for work in self.works for contestant in work.contestants}
        return list(found.values())


def meets(bar: Bar, metric: Metric, median: float) -> bool:
    """Judged as printed, so that a table never shows 1.00 beside a bar of 1.00 and calls it missed."""
    shown = round(median, 2)
    return shown >= bar.limit if metric.better == "higher" else shown <= bar.limit
