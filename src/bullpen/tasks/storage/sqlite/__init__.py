"""Tasks in one SQLite file, shared by all processes of one machine. To read it, follow one `add`:

store.py         SqliteStorage: the verbs of the port, each a work item for the writer or the reader
group_commit.py  many callers, one connection: the leader works for all that wait
writer.py        a group in one transaction; durability, checkpoints; reading
task_table.py    the moves of tasks as statements inside a transaction
claims.py        which tasks may start now, without reading through those that may not
rows.py          a task as a row, and back
wakeups.py       how processes wake each other
shared.py        what all stores of a process share: the writer, the reader, the waker; what happens at a fork
file.py          which files are rejected; how they are opened; one writer at a time; faults by name
schema.py        the tables, and how older ones become them
health_checks.py what `bullpen doctor` says about a file
transaction.py   tasks in a transaction of the user's own
"""
