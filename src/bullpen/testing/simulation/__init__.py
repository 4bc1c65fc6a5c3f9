"""The real workers and the real store in memory, in a world of their own in which everything goes wrong that can.

    run = simulate(seed=42)
    run.raise_for_violations()

Several workers, each a process with the event loops it really has, share one store. Who goes on next, how long
everything takes, and what goes wrong is drawn from the seed: processes vanish at any step and at every failpoint, stand
still for longer than their leases, lose requests and answers, are cut off from the store, or the store from all; the
wall clock is turned; tasks fail, time out, are cancelled, block their loop, refuse to end, kill their worker. After a
while all is calm, the workers have some time to put everything in order, and the history is checked.

The tasks may be your own, to prove that it does no harm if they run again after half of their work:

    run = simulate(seed, queue=queue, start=enqueue_some, kill=0.2)

A seed always makes the same history, byte for byte. Not simulated are threads, on which no function runs here, and
stores on disks.
"""

from __future__ import annotations

from bullpen.testing.simulation.play import Plan, SimulationRun, may_die, simulate

__all__ = ["Plan", "SimulationRun", "may_die", "simulate"]
