"""Tasks in PostgreSQL, for any number of hosts.

store.py        the verbs of the port
link.py         the way to the server: connections, transactions, the schema that must be there
ledger.py       the moves of tasks, as statements inside a transaction
line.py         where claims begin
schema.py       the tables and functions, and how older ones become them
rows.py         a task as a row, and back
transaction.py  tasks in a transaction of the user's own
failures.py     what the server says, as errors of ours
checkup.py      what may be wrong with a server
"""
