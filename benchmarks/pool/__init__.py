"""The thread pool beside other pools: `works` (measurements, contestants and bars), `peers` (each library in its
own idiom), `timing`, `asynchronous`, `memory`, `dispatch` and `sessions` (one measurement).
"""
