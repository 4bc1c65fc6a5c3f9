"""The task queue beside other queues on the same server, Redis or PostgreSQL, and beside the raw statements.

Reading order: `works` (what is measured, by whom, and the bars), `settings` (sizes and places), `raw` (what the server
itself can do over the same driver), `ours` and `peers` (each library in its own idiom: how tasks get in, and how one
process works them off), `measures` (one measurement each).
"""
