"""The metrics that several suites share: rates and latencies."""

from __future__ import annotations

from collections.abc import Iterable

from .model import Metric

RATE, P50, P99 = "rate", "p50", "p99"

THROUGHPUT = (Metric(RATE, "throughput", "tasks/s", "higher"),)
LATENCY = (Metric(P50, "median", "µs", "lower"), Metric(P99, "99th percentile", "µs", "lower"))


def percentile(part: int, spans: Iterable[float]) -> float:
    """The percentile: the given percentage of the spans does not exceed it."""
    ordered = sorted(spans)
    return ordered[len(ordered) * part // 100]


def latency_of(nanoseconds: Iterable[float]) -> dict[str, float]:
    spans = list(nanoseconds)
    return {P50: percentile(50, spans) / 1000, P99: percentile(99, spans) / 1000}
