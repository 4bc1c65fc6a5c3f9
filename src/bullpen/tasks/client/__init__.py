"""The API of durable tasks. To read it, follow one task from `enqueue` to its result:

task_queue.py   TaskQueue: functions become tasks; methods that list, cancel, retry and limit them
function.py     TaskFunction: what `@queue.task` makes of a function
clients.py      one client of the store per event loop, also after a fork
portal.py       the event loop behind the sync methods
watch.py        the events that the observer of a queue gets
job.py          Job: one task, and the way to its result
schedules.py    Schedules: list, pause, resume, run and remove the schedules of a queue
why.py          why a task is not finished
"""

from bullpen.tasks.client.function import AsyncTaskFunction, SyncTaskFunction, TaskFunction
from bullpen.tasks.client.job import Job
from bullpen.tasks.client.schedules import Schedules
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.client.why import Cause, Why

__all__ = ["AsyncTaskFunction", "Cause", "Job", "Schedules", "SyncTaskFunction", "TaskFunction", "TaskQueue", "Why"]
