"""Compares Bullpen with its peers in one run.

Run ``python -m benchmarks`` for the pool and ``python -m benchmarks tasks`` for the task queue;
``benchmarks/README.md`` states the method and the fairness rules.

Reading order: `model` (the words), the suites `pool/`, `processes/`, `tasks/` and `servers/` (`works` first in each),
`child` (the process around one measurement), `measure` (rounds and ratios), `report` and `chart` (the output).
"""
