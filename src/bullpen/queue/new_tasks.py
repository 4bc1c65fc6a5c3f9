"""What middleware around `enqueue` sees: tasks that are about to be kept."""

from __future__ import annotations


class NewTasks:
    """One call of `enqueue`, or of `enqueue_many`, whose tasks have all in common but their arguments.

    `headers` may be changed until they are kept; `ids` are there afterwards. Arguments, which may be
    secrets, are not here.
    """

    __slots__ = ("count", "headers", "ids", "name", "queue")

    def __init__(self, name: str, queue: str, headers: dict[str, str], count: int) -> None:
        self.name = name
        self.queue = queue
        self.headers = headers
        self.count = count
        self.ids: tuple[str, ...] = ()

    def __repr__(self) -> str:
        return f"<{self.count} new {self.name} in {self.queue}>"
