"""Bullpen's thread pool beside its peers, measured in one run.

Run ``python -m benchmarks``; ``benchmarks/README.md`` states the method and the fairness rules.

Reading order: `works` (what is measured, by whom, and the bars), `peers` (each library in its own idiom), `timing`,
`memory` and `dispatch` (one measurement), `child` (the process around it), `measure` (rounds and ratios), `report`
and `chart` (what a person sees).
"""
