"""The thread pool beside other pools: `works` (what is measured, by whom, and the bars), `peers` (each library in its
own idiom), `timing`, `asynchronous`, `memory`, `dispatch` and `sessions` (one measurement).
"""
