"""The process pool beside other process pools: `works` (what is measured, by whom, and the bars), `peers` (each library
as its users open it), `timing` (one measurement), `calls` (what they run).
"""
