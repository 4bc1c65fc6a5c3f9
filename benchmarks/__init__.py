"""Bullpen beside its peers, measured in one run.

Run ``python -m benchmarks`` for the pool and ``python -m benchmarks tasks`` for the task queue;
``benchmarks/README.md`` states the method and the fairness rules.

Reading order: `model` (the words), `pool/` and `tasks/` (what is measured, each with its `works` first), `child` (the
process around one measurement), `measure` (rounds and ratios), `report` and `chart` (what a person sees).
"""
