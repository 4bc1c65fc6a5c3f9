"""Whole programs that `benchmarks.starting` starts: scripts with a process pool, and the apps of workers.

The environment names the file that gets the time of the first result or task, and the address of the queue.
"""
