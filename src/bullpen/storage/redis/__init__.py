"""Tasks in Redis or Valkey, for any number of hosts.

store.py     the verbs of the port
scripts.py   what they say to the server, in Lua: each is one atomic step
rows.py      a task as two values, and back
link.py      the way to the server
failures.py  what the server says, as errors of ours
"""
