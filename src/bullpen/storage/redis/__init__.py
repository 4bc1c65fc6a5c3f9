"""Tasks in Redis or Valkey, for any number of hosts.

store.py     the verbs of the port
scripts.py   what they say to the server: each is one atomic step, and one file of lua/
rows.py      a task as two values, and back
link.py      the way to the server
failures.py  what the server says, as errors of ours
"""
