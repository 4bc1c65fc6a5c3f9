"""What the end of a task means for those behind it, without a store."""

from __future__ import annotations

from collections.abc import Iterator

from bullpen.tasks.model.links import GIVEN_UP, redriven_behind
from bullpen.tasks.model.task import CANCELLED, FAILED, DependsOn, Task


def test_a_dependent_task_reads_no_more_members_than_it_needs() -> None:
    """Or a large group that failed would take long to be run again, one by one."""
    asked = []

    def members() -> Iterator[Task]:
        for number in range(100):
            asked.append(number)
            yield Task(id=f"{number}", func_path="f", payload=b"{}", status=FAILED)

    depends_on = DependsOn(ids=tuple(map(str, range(100))))
    last = Task(id="last", func_path="f", payload=b"{}", status=CANCELLED, depends_on=depends_on, waits_for=GIVEN_UP)
    assert redriven_behind(last, members(), 0.0) is None
    assert asked == [0]
