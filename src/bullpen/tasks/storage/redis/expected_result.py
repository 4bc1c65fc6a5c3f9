"""Foreseeing that a client waits for the task that it adds next."""

from __future__ import annotations

from bullpen.tasks.storage.notifications import RESULT, NotificationListener, Subscription


class ExpectedResult:
    """If a client has waited for the task before, it subscribes to the result of the next task as it adds that.

    The task is added as awaited, so the wait needs no script of its own. See benchmarks/FAST_PATHS.md.
    """

    def __init__(self) -> None:
        self._latest = ""  # the task that was added last, alone
        self._latest_is_awaited = False
        self._expected: tuple[str, NotificationListener, Subscription] | None = None

    def expect(self, task_id: str, listener: NotificationListener | None) -> bool:
        """Note that a task is about to be added alone. Returns whether its result is expected."""
        was_awaited, self._latest, self._latest_is_awaited = self._latest_is_awaited, task_id, False
        self.stop()
        if not was_awaited or listener is None or not listener.is_listening:
            return False
        self._expected = task_id, listener, listener.expect([RESULT + task_id])
        return True

    def stop(self) -> None:
        """Unsubscribe: the task was not added, or another one is."""
        if self._expected is not None:
            _, listener, subscription = self._expected
            self._expected = None
            listener.forget(subscription)

    def take(self, task_id: str, listener: NotificationListener) -> Subscription | None:
        """The subscription to the result of a task, if it was expected. The caller forgets it."""
        if self._expected is None or self._expected[:2] != (task_id, listener):
            return None
        _, _, subscription = self._expected
        self._expected = None
        return subscription

    def awaits(self, task_id: str) -> None:
        """Note that a client waits for a task."""
        self._latest_is_awaited |= task_id == self._latest
