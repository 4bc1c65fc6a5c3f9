"""A backend for Django's tasks: `django.tasks` of Django 6.0 and newer, or the package django-tasks before.

    TASKS = {
        "default": {
            "BACKEND": "bullpen.integrations.django.BullpenBackend",
            "OPTIONS": {"url": "sqlite:////srv/shop/jobs.db", "max_retries": 3, "timeout": 60},
        }
    }

`OPTIONS` has the address of the store and the other options of `TaskQueue`. This worker runs the tasks in the module
`tasks` of every installed app:

    $ DJANGO_SETTINGS_MODULE=shop.settings bullpen worker bullpen.integrations.django:queue

Arguments and results are JSON, as Django demands, whatever the annotations are. The worker closes old database
connections before and after every task, as Django does for a request.
"""

from __future__ import annotations

import functools
import inspect
import sys
import threading
import traceback
from collections.abc import Callable
from datetime import datetime
from types import ModuleType
from typing import Any, ClassVar

from asgiref.sync import sync_to_async
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections
from django.utils import timezone

from bullpen.errors import InvalidOption
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.context import current_task
from bullpen.tasks.model.info import as_datetime
from bullpen.tasks.model.task import RUNNING, SUCCESS
from bullpen.tasks.model.task import Task as StoredTask
from bullpen.tasks.storage.port import Storage

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:
    try:
        from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import TaskError
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json
    except ModuleNotFoundError as error:
        raise ImportError(f"it needs Django 6.0, or an older one and: pip install django-tasks ({error})") from None

PRIORITY = "django-priority"  # a header: Bullpen has ten priorities, Django 201


class BullpenBackend(BaseTaskBackend):  # type: ignore[misc]
    """Enqueues Django's tasks as tasks of Bullpen. Django makes a backend for each thread; all share a `TaskQueue`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._shared = _Shared.of(alias, self.options)
        self.queue = self._shared.queue

    def validate_task(self, task: Any) -> None:
        """Registers the function for workers. Django also calls this for every task that is defined."""
        super().validate_task(task)
        self._shared.know(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        args, kwargs = normalize_json(list(args)), normalize_json(kwargs)
        job = self.queue.enqueue(task.module_path, args, kwargs, **_options(task))
        return self._enqueued(task, job.id, args, kwargs)

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        args, kwargs = normalize_json(list(args)), normalize_json(kwargs)
        job = await self.queue.aenqueue(task.module_path, args, kwargs, **_options(task))
        return self._enqueued(task, job.id, args, kwargs)

    def _enqueued(self, task: Any, task_id: str, args: Any, kwargs: Any) -> Any:
        result = _result(self.alias, task, task_id, args, kwargs, enqueued_at=timezone.now())
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        return self._result_of(self.queue._backend.run("get_result", self._look(result_id)))

    async def aget_result(self, result_id: str) -> Any:
        return self._result_of(await self._look(result_id))

    async def _look(self, result_id: str) -> StoredTask:
        storage: Storage = await self.queue.astorage()
        (stored,) = await storage.get([result_id])
        if stored is None:
            raise TaskResultDoesNotExist(result_id)
        return stored

    def _result_of(self, stored: StoredTask) -> Any:
        """The stored task as a result of Django."""
        task = self._shared.tasks.get(stored.func_path)
        definition = self.queue.registry.get(stored.func_path)
        if task is None or definition is None:
            raise TaskResultDoesNotExist(f"{stored.id} is a task of {stored.func_path}, which is not registered here")
        args, kwargs = definition.decode(stored.payload)
        changes = {"queue_name": stored.queue, "priority": int(stored.headers.get(PRIORITY, "0"))}
        result = _result(
            self.alias,
            task.using(**changes),
            stored.id,
            args,
            kwargs,
            status=_STATUSES.get(stored.status.value, TaskResultStatus.FAILED),
            enqueued_at=as_datetime(stored.created_at),
            started_at=None if stored.started_at is None else as_datetime(stored.started_at),
            finished_at=None if stored.finished_at is None else as_datetime(stored.finished_at),
            errors=[_error(error.type, error.traceback or error.message) for error in stored.errors],
            worker_ids=_workers(stored),
        )
        if stored.status is SUCCESS and stored.result is not None:
            object.__setattr__(result, "_return_value", definition.codec.decode_result(stored.result))
        return result


class _Shared:
    """The queue of one alias, and its tasks by name."""

    _all: ClassVar[dict[str, _Shared]] = {}
    _lock = threading.Lock()

    def __init__(self, alias: str, options: dict[str, Any]) -> None:
        self.alias = alias
        self.options = dict(options)
        self.tasks: dict[str, Any] = {}
        url = options.get("url")
        if not url:
            raise ImproperlyConfigured(
                f'TASKS[{alias!r}]["OPTIONS"]["url"] is missing: where tasks are kept, such as sqlite:////srv/jobs.db'
            )
        try:
            self.queue = TaskQueue(url, **{name: value for name, value in options.items() if name != "url"})
        except (InvalidOption, TypeError) as error:
            raise ImproperlyConfigured(f'TASKS[{alias!r}]["OPTIONS"]: {error}') from error

    @classmethod
    def of(cls, alias: str, options: dict[str, Any]) -> _Shared:
        with cls._lock:
            known = cls._all.get(alias)
            if known is None or known.options != options:
                known = cls._all[alias] = cls(alias, options)
            return known

    def know(self, task: Any) -> None:
        with self._lock:
            known = self.tasks.get(task.module_path)
            if known is None or known.func is not task.func:
                function = _as_called_by_workers(self.alias, task)
                self.queue.task(name=task.module_path, queue=task.queue_name)(function)
                self.tasks[task.module_path] = task


def _options(task: Any) -> Any:
    """The options of one call."""
    options: dict[str, Any] = {
        "queue": task.queue_name,
        "priority": (task.priority + 100) * 10 // 201,
        "headers": {PRIORITY: str(task.priority)},
    }
    if task.run_after is not None:
        when = task.run_after
        options["eta"] = when if timezone.is_aware(when) else timezone.make_aware(when)
    return options


def _result(
    alias: str,
    task: Any,
    task_id: str,
    args: Any,
    kwargs: Any,
    *,
    status: Any = TaskResultStatus.READY,
    enqueued_at: datetime | None = None,
    started_at: datetime | None = None,
    finished_at: datetime | None = None,
    errors: list[Any] | None = None,
    worker_ids: list[str] | None = None,
) -> Any:
    return TaskResult(
        task=task,
        id=task_id,
        status=status,
        enqueued_at=enqueued_at,
        started_at=started_at,
        last_attempted_at=started_at,
        finished_at=finished_at,
        args=list(args),
        kwargs=kwargs,
        backend=alias,
        errors=errors or [],
        worker_ids=worker_ids or [],
    )


_STATUSES = {
    "pending": TaskResultStatus.READY,
    "running": TaskResultStatus.RUNNING,
    "success": TaskResultStatus.SUCCESSFUL,
}


def _error(type_name: str, told: str) -> Any:
    type_name = type_name or "RuntimeError"
    path = type_name if "." in type_name else f"builtins.{type_name}"
    return _StoredError(exception_class_path=path, traceback=told)


class _StoredError(TaskError):  # type: ignore[misc]
    """An error of Django whose class is found, never imported: a row in the store must not choose what is imported."""

    __slots__ = ()

    @property
    def exception_class(self) -> type[BaseException]:
        names = self.exception_class_path.split(".")
        for end in range(len(names) - 1, 0, -1):
            found: Any = sys.modules.get(".".join(names[:end]))
            for name in names[end:]:
                # Not getattr: a module may import something when it is asked for an attribute.
                has_names = isinstance(found, ModuleType | type)
                found = object.__getattribute__(found, "__dict__").get(name) if has_names else None
            if isinstance(found, type) and issubclass(found, BaseException):
                return found
        raise ValueError(f"{self.exception_class_path!r} is not an exception of an imported module; import it first")


def _workers(stored: StoredTask) -> list[str]:
    """The worker of each attempt, because Django counts them; "" if it is no longer known."""
    known = [error.worker for error in stored.errors]
    if stored.status is RUNNING or stored.status is SUCCESS:
        known.append(stored.worker or "")
    return [""] * (stored.attempt - len(known)) + known[-stored.attempt :] if stored.attempt else []


# On a worker.


def _as_called_by_workers(alias: str, task: Any) -> Callable[..., Any]:
    """The function with Django's signals and context around it, and a signature without annotations."""
    function = task.func

    def begin(args: Any, kwargs: Any) -> tuple[_StoredOutcome, tuple[Any, ...]]:
        current = current_task()
        now, workers = timezone.now(), [""] * current.attempt
        result = _result(
            alias, task, current.id, args, kwargs, status=TaskResultStatus.RUNNING, started_at=now, worker_ids=workers
        )
        task_started.send(BullpenBackend, task_result=result)
        return _StoredOutcome(result), (TaskContext(task_result=result), *args) if task.takes_context else args

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            await sync_to_async(close_old_connections)()
            end, given = await sync_to_async(begin)(args, kwargs)
            try:
                end.value = normalize_json(await function(*given, **kwargs))
            except BaseException as error:
                end.error = error
                raise
            finally:
                await sync_to_async(end.say)()
                await sync_to_async(close_old_connections)()
            return end.value
    else:

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            close_old_connections()
            end, given = begin(args, kwargs)
            try:
                end.value = normalize_json(function(*given, **kwargs))
            except BaseException as error:
                end.error = error
                raise
            finally:
                end.say()
                close_old_connections()
            return end.value

    parameters = [
        parameter.replace(annotation=parameter.empty) for parameter in inspect.signature(function).parameters.values()
    ]
    run.__signature__ = inspect.Signature(parameters[1:] if task.takes_context else parameters)  # type: ignore[attr-defined]
    return run


class _StoredOutcome:
    """The outcome of an attempt. `say` sends the signal `task_finished`, unless the task is retried."""

    def __init__(self, result: Any) -> None:
        self._result = result
        self.error: BaseException | None = None
        self.value: Any = None

    def say(self) -> None:
        current, error = current_task(), self.error
        if error is not None and current.failures < current.max_retries:
            return
        changes = {"finished_at": timezone.now(), "status": TaskResultStatus.SUCCESSFUL, "_return_value": self.value}
        if error is not None:
            told = "".join(traceback.format_exception(error))
            changes["errors"] = [_error(f"{type(error).__module__}.{type(error).__qualname__}", told)]
            changes["status"] = TaskResultStatus.FAILED
        for name, value in changes.items():
            object.__setattr__(self._result, name, value)
        task_finished.send(BullpenBackend, task_result=self._result)


def __getattr__(name: str) -> Any:
    """`queue`: the queue of the default backend, with all tasks of the project, for `bullpen worker`."""
    if name != "queue":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    import django
    from django.utils.module_loading import autodiscover_modules

    django.setup()
    autodiscover_modules("tasks")
    backend = task_backends["default"]
    if not isinstance(backend, BullpenBackend):
        raise ImproperlyConfigured(f"TASKS['default'] is a {type(backend).__name__}, not a BullpenBackend")
    return backend.queue
