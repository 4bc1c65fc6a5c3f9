"""Tasks in PostgreSQL, for any number of hosts.

store.py             the methods of the storage port
client.py            connections, transactions, retries, and the check of the schema
connection_pool.py   the connections of one event loop
task_table.py        changes of tasks, as statements inside a transaction
claim_cursor.py      where claims start in the index
schema.py            the versions of the schema
statements.py        the statements, by name
sql_files.py         reads sql/: the migrations and the statements
rows.py              a task as a row, and back
user_transaction.py  tasks in a transaction of the user's own
failures.py          errors of the server and the driver, translated
health_checks.py     settings and states of a server that need attention
"""
