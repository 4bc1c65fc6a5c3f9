"""Tasks in Redis or Valkey, shared by any number of hosts.

Read `scripts.py` first: the keys, and why each script is atomic. Then the store, in this order:

store.py           `RedisStorage`: all verbs of `storage.port.Storage`, put together from the files below
client.py          what every verb needs: a connection, running scripts, finding the queue of a task
adding.py          `add`, by one of three scripts
claiming.py        workers: settle and claim, renew leases, take tasks back from dead workers
waiting.py         waiting for work and for results
reading.py         get, list, count
changing.py        cancel, retry, change, delete
moving.py          import and export
upkeep.py          expire, prune
queue_settings.py  worker records; pause and limits of queues

rows.py            a task as two packed values, and back
scripts.py, lua/   one script per verb

connection.py      running commands and scripts; its three kinds are in loop_connection.py, blocking_connection.py and
                   cluster_connection.py
raw_connection.py  one socket, as redis-py has opened it
address.py         the address and its options
failures.py        errors of the driver as errors of Bullpen
health_checks.py   settings of the server that lose tasks
"""
