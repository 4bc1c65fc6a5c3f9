"""Tasks in one SQLite file, shared by all processes of one machine.

store.py        SqliteStorage: the verbs of the port, each a job for the writer or the reader
jobs.py         work for these threads, and who waits for it
line.py         the threads that own the connections; group commit; what happens at a fork
ledger.py       the moves of tasks as statements inside a transaction
claims.py       which tasks may start now, without reading through those that may not
rows.py         a task as a row, and back
schema.py       the tables, and how older ones become them
file.py         which files are refused; how they are opened; one writer at a time; faults by name
signals.py      how processes wake each other
host.py         time that no clock adjustment touches
transaction.py  the acknowledgement inside a transaction of the user's own
"""
