"""Tasks in one SQLite file, shared by all processes of one machine.

store.py        SqliteStorage: the verbs of the port, each a job for the writer or the reader
shared.py       what all stores of a process share: the writer, the reader, the bell; what happens at a fork
line.py         who leads: callers that wait share a connection, and one works for all
writer.py       group commit, durability, checkpoints; reading
jobs.py         work for a line, and who waits for it
ledger.py       the moves of tasks as statements inside a transaction
claims.py       which tasks may start now, without reading through those that may not
rows.py         a task as a row, and back
schema.py       the tables, and how older ones become them
file.py         which files are refused; how they are opened; one writer at a time; faults by name
signals.py      how processes wake each other
host.py         time that no clock adjustment touches
transaction.py  the acknowledgement inside a transaction of the user's own
"""
