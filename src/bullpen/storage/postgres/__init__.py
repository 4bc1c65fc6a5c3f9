"""Tasks in PostgreSQL, for any number of hosts.

store.py     the verbs of the port
schema.py    the tables and functions, and how older ones become them
rows.py      a task as a row, and back
failures.py  what the server says, as errors of ours
"""
