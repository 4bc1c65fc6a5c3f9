"""A simulation: the real workers and the real store in memory, with virtual time and injected faults.

    run = simulate(seed=42)
    run.raise_for_violations()

Several workers, each a process with the event loops of a real one, share one store. The seed decides which process
runs next, how long each step takes, and which faults happen:

- A process dies at any step or failpoint, or is stopped for longer than its leases.
- A request or an answer is lost. One process, or all of them, cannot reach the store.
- The wall clock is changed.
- A task fails, times out, is cancelled, blocks its loop, does not stop, or kills its worker.

Then the faults end, the workers get time to recover, and the history is checked.

The tasks may be your own, to prove that they may run again after half of their work:

    run = simulate(seed, queue=queue, start=enqueue_some, kill=0.2)

A seed always makes the same history, byte for byte. Threads and stores on disks are not simulated.
"""

from __future__ import annotations

from bullpen.testing.simulation.play import Plan, SimulationRun, may_die, simulate

__all__ = ["Plan", "SimulationRun", "may_die", "simulate"]
