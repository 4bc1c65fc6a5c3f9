"""Durable tasks as people use them. To read it, follow one task from `enqueue` to its result:

task_queue.py   TaskQueue: functions become tasks, and the verbs of people
function.py     TaskFunction: what `@queue.task` makes of a function
clients.py      one client of the store per event loop, also after a fork
portal.py       the event loop behind the sync methods
watch.py        what the observer of a queue is told
job.py          Job: one task, and the way to its result
schedules.py    Schedules: the verbs of people for what runs again and again
why.py          why a task is not done
"""

from bullpen.tasks.client.function import AsyncTaskFunction, SyncTaskFunction, TaskFunction
from bullpen.tasks.client.job import Job
from bullpen.tasks.client.schedules import Schedules
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.client.why import Cause, Why

__all__ = ["AsyncTaskFunction", "Cause", "Job", "Schedules", "SyncTaskFunction", "TaskFunction", "TaskQueue", "Why"]
