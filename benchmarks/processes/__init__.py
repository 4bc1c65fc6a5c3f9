"""The process pool beside other process pools: `works` (measurements, contestants and bars), `peers` (each library as
its users open it), `timing` (one measurement), `calls` (the functions that run).
"""
