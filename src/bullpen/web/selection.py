"""Which tasks a page or an action is about: the filters in its address or form."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal
from urllib.parse import urlencode

from bullpen.tasks.client.task_queue import TaskFilters
from bullpen.tasks.model.task import TaskStatus
from bullpen.web.parameters import WrongParameter, one_of

STATUSES = tuple(str(status) for status in TaskStatus)
NAMES = ("status", "queue", "function", "worker", "error", "fingerprint", "key", "header", "within")
TIMES: Mapping[str, int] = {"hour": 3600, "day": 86_400, "week": 7 * 86_400}  # since they ended, or were enqueued

Verb = Literal["retry", "cancel", "delete"]
# The states of tasks that a verb changes.
CHANGES: Mapping[Verb, tuple[TaskStatus, ...]] = {
    "retry": (TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.SUCCESS),
    "cancel": (TaskStatus.PENDING, TaskStatus.RUNNING),
    "delete": (TaskStatus.FAILED, TaskStatus.CANCELLED, TaskStatus.SUCCESS),
}
UNLESS_CHOSEN: Mapping[Verb, tuple[TaskStatus, ...]] = {**CHANGES, "retry": (TaskStatus.FAILED,)}


@dataclass(frozen=True, slots=True)
class TaskSelection:
    """The filters that were chosen; "" for those that were not."""

    status: str
    queue: str
    function: str
    worker: str
    error: str
    fingerprint: str
    key: str
    header: str  # NAME=VALUE
    within: str

    @classmethod
    def read(cls, given: Mapping[str, str]) -> TaskSelection:
        one_of(given, "status", STATUSES)
        one_of(given, "within", tuple(TIMES))
        if given.get("header", "").strip() and "=" not in given["header"]:
            raise WrongParameter("header must be a name and a value: tenant=acme")
        return cls(*(given.get(name, "").strip() for name in NAMES))

    @property
    def chosen(self) -> dict[str, str]:
        return {name: value for name in NAMES if (value := getattr(self, name))}

    @property
    def filters(self) -> TaskFilters:
        found: TaskFilters = {}
        if self.status:
            found["status"] = TaskStatus(self.status)
        if self.queue:
            found["queue"] = self.queue
        if self.function:
            found["name"] = self.function
        if self.worker:
            found["worker"] = self.worker
        if self.error:
            found["error"] = self.error
        if self.fingerprint:
            found["fingerprint"] = self.fingerprint
        if self.key:
            found["key"] = self.key
        if self.header:
            name, _, value = self.header.partition("=")
            found["header"] = (name.strip(), value.strip())
        if self.within:
            found["newer_than"] = TIMES[self.within]
        return found

    def filters_for(self, verb: Verb) -> TaskFilters:
        """With the states that the verb changes. Raises WrongParameter if it does not change the chosen one."""
        if self.status and TaskStatus(self.status) not in CHANGES[verb]:
            raise WrongParameter(f"{verb} does not apply to tasks that are {self.status}")
        return {"status": UNLESS_CHOSEN[verb], **self.filters}

    def verbs(self) -> list[Verb]:
        """The verbs that apply."""
        return [verb for verb, states in CHANGES.items() if not self.status or TaskStatus(self.status) in states]

    def words_for(self, verb: Verb) -> str:
        """`failed tasks, queue mail`"""
        states = " or ".join(map(str, [self.status] if self.status else UNLESS_CHOSEN[verb]))
        others = [
            f"{'within the last' if name == 'within' else name} {value}"
            for name, value in self.chosen.items()
            if name != "status"
        ]
        return ", ".join([f"{states} tasks", *others])

    def query(self, **changes: str) -> str:
        pairs = {name: value for name, value in {**self.chosen, **changes}.items() if value}
        return f"?{urlencode(pairs)}" if pairs else ""


def read_verb(given: Mapping[str, str]) -> Verb:
    verb = one_of(given, "verb", tuple(CHANGES))
    for known in CHANGES:
        if verb == known:
            return known
    raise WrongParameter(f"verb must be one of {', '.join(CHANGES)}")
