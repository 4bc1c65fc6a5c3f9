"""The table of docs/reference/metrics.md, from the list of metrics. `python -m tests.docs.metrics` rewrites it."""

from __future__ import annotations

import re

from bullpen.integrations.prometheus import METRICS
from tests.docs.markdown import ROOT

PAGE = ROOT / "docs" / "reference" / "metrics.md"


def table() -> str:
    rows = []
    for metric in METRICS.values():
        labels = ", ".join(f"`{label}`" for label in metric.labels)
        rows.append(f"| `{metric.name}` | {metric.type} | {labels} | {metric.help.removesuffix('.')} |")
    return "\n".join(["| metric | type | labels | meaning |", "|---|---|---|---|", *rows])


def drawn(page: str) -> str:
    return re.sub(r"(<!-- table -->\n\n).*?(\n\n<!-- end -->)", rf"\1{table()}\2", page, flags=re.DOTALL)


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text()))
