"""The state of a pool: one value, which `PoolStatus.change` replaces.

Every thread that submits or runs a request reads this value and takes no lock for it. A `Phase` never changes. So a
thread that reads it once gets answers that belong together.
"""

from __future__ import annotations

from bullpen.errors import PoolClosed, PoolFailed, repr_of
from bullpen.pools.dispatch.states import POOL_MOVES, PoolState, check_move

OPEN = (PoolState.INITIALIZING, PoolState.RUNNING)
ENDED = (PoolState.CLOSED, PoolState.FAILED)


class Phase:
    """One value of a pool's state. Immutable."""

    __slots__ = ("because", "draining", "ending", "failure", "paused", "state")

    def __init__(
        self,
        state: PoolState,
        *,
        paused: bool = False,
        ending: bool = False,
        because: str = "it is closed",
        failure: BaseException | None = None,
    ) -> None:
        self.state = state
        self.paused = paused  # workers start no request
        self.draining = state is PoolState.DRAINING or state in ENDED  # the pool accepts no new request
        self.ending = ending or state in ENDED  # and no map brings items: a worker ends when no request waits
        self.because = because  # why the pool accepts no new request
        self.failure = failure  # why the pool could not start


class PoolStatus:
    """The current phase of one pool. Writers hold the pool's lock, readers hold none."""

    __slots__ = ("_name", "phase")

    def __init__(self, name: str) -> None:
        self._name = name
        self.phase = Phase(PoolState.CONFIGURING)

    def change(
        self,
        state: PoolState | None = None,
        *,
        paused: bool | None = None,
        ending: bool | None = None,
        because: str | None = None,
        failure: BaseException | None = None,
    ) -> None:
        """Replace the phase by one with these changes. Raises `IllegalTransition` if `POOL_MOVES` has no such move."""
        old = self.phase
        if state is not None:
            check_move(POOL_MOVES, old.state, state)
        self.phase = Phase(
            old.state if state is None else state,
            paused=old.paused if paused is None else paused,
            ending=old.ending if ending is None else ending,
            because=old.because if because is None else because,
            failure=failure or old.failure,
        )

    def disown(self, because: str) -> None:
        """This process was forked: the pool belongs to the parent, and is closed here whatever its state was."""
        self.phase = Phase(PoolState.CLOSED, because=because)

    @property
    def state(self) -> PoolState:
        return self.phase.state

    @property
    def paused(self) -> bool:
        return self.phase.paused

    @property
    def draining(self) -> bool:
        return self.phase.draining

    @property
    def ending(self) -> bool:
        return self.phase.ending

    @property
    def open(self) -> bool:
        """The pool accepts new requests."""
        return self.phase.state in OPEN

    @property
    def ended(self) -> bool:
        """The pool is closed, or failed."""
        return self.phase.state in ENDED

    def check_open(self) -> None:
        """Raise unless the pool accepts new requests."""
        if not self.open:
            raise self.not_open()

    def not_open(self) -> PoolClosed | PoolFailed:
        """The error that tells a caller why the pool accepts no new request."""
        phase = self.phase
        error: PoolClosed | PoolFailed
        if phase.state is PoolState.FAILED:
            error = PoolFailed(
                f"pool {self._name!r} could not start a worker: {repr_of(phase.failure)}", pool=self._name
            )
            error.__cause__ = phase.failure
        else:
            error = PoolClosed(f"pool {self._name!r} takes no new work: {phase.because}", pool=self._name)
        return error
