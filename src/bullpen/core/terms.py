"""What a call asks for besides its limits in time. One object serves all calls that are made alike."""

from __future__ import annotations

from typing import Literal

Affinity = Literal["hint", "strict_queue", "strict_fail_fast"]

AFFINITIES = ("hint", "strict_queue", "strict_fail_fast")


class Terms:
    """The terms of a call: the session it belongs to, and whether it may run again if its worker dies."""

    __slots__ = ("affinity", "crash_retries", "idempotent", "session")

    def __init__(
        self,
        session: str | None = None,
        affinity: Affinity = "hint",
        idempotent: bool = False,
        crash_retries: int = 1,
    ) -> None:
        self.session = session
        self.affinity = affinity
        self.idempotent = idempotent
        self.crash_retries = crash_retries

    @property
    def strict(self) -> bool:
        """The session has to be served by its own worker and by no other."""
        return self.session is not None and self.affinity != "hint"

    def once_only(self) -> Terms:
        """These, for a call that has gone too far to run again."""
        return Terms(self.session, self.affinity, idempotent=False) if self.idempotent else self

    @property
    def any(self) -> bool:
        """Something is asked for that a plain call does not."""
        return self.session is not None or self.idempotent
