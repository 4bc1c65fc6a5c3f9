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

It serves all of `QUEUES`. The worker of another backend in `TASKS` is `bullpen.integrations.django:queues.ALIAS`.
Arguments and results are JSON, as Django demands, whatever the annotations are. The worker closes old database
connections before and after every task, as Django does for a request.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import sys
import threading
import traceback
from collections.abc import Callable, Set
from datetime import datetime
from types import ModuleType
from typing import Any, ClassVar, cast

from asgiref.sync import sync_to_async
from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import close_old_connections
from django.utils import timezone

from bullpen.errors import InvalidOption, InvalidOptionType, Snooze
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.model.context import current_task
from bullpen.tasks.model.info import TaskInfo, info_of
from bullpen.tasks.model.options import queue_name
from bullpen.tasks.model.queue_patterns import ANY
from bullpen.tasks.model.task import RUNNING, SUCCESS
from bullpen.tasks.model.task import Task as StoredTask
from bullpen.tasks.storage.port import Storage

try:
    from django.tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
    from django.tasks.backends.base import BaseTaskBackend
    from django.tasks.base import Task, TaskError
    from django.tasks.exceptions import TaskResultDoesNotExist
    from django.tasks.signals import task_enqueued, task_finished, task_started
    from django.utils.json import normalize_json
except ImportError:
    try:
        from django_tasks import TaskContext, TaskResult, TaskResultStatus, task_backends
        from django_tasks.backends.base import BaseTaskBackend
        from django_tasks.base import Task, TaskError
        from django_tasks.exceptions import TaskResultDoesNotExist
        from django_tasks.signals import task_enqueued, task_finished, task_started
        from django_tasks.utils import normalize_json
    except ModuleNotFoundError as error:
        raise ImportError(f"it needs Django 6.0, or an older one and: pip install django-tasks ({error})") from None

# Headers: what Django has in a call and Bullpen has not, or has in another form.
PRIORITY = "django-priority"  # Bullpen has ten priorities, Django 201
RUN_AFTER = "django-run-after"  # as it was given; `eta` moves with every retry
ENQUEUED_AT = "django-enqueued-at"  # by the clock of the caller, as in the result that `enqueue` returned


class BullpenBackend(BaseTaskBackend):  # type: ignore[misc]
    """Enqueues Django's tasks as tasks of Bullpen. Django makes a backend for each thread; all share a `TaskQueue`."""

    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self._shared = _Shared.of(alias, self.options, self.queues)
        self.queue = self._shared.queue

    def validate_task(self, task: Any) -> None:
        """Registers the function for workers. Django also calls this for every task that is defined."""
        super().validate_task(task)
        self._shared.know(task)

    def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        args, kwargs, now = _as_json(list(args)), _as_json(kwargs), timezone.now()
        job = self.queue.enqueue(task.module_path, args, kwargs, **_options(task, now))
        return self._enqueued(task, job.id, args, kwargs, now)

    async def aenqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
        self.validate_task(task)
        args, kwargs, now = _as_json(list(args)), _as_json(kwargs), timezone.now()
        job = await self.queue.aenqueue(task.module_path, args, kwargs, **_options(task, now))
        return self._enqueued(task, job.id, args, kwargs, now)

    def _enqueued(self, task: Any, task_id: str, args: Any, kwargs: Any, now: datetime) -> Any:
        result = TaskResult(
            task=task,
            id=task_id,
            status=TaskResultStatus.READY,
            enqueued_at=now,
            started_at=None,
            last_attempted_at=None,
            finished_at=None,
            args=args,
            kwargs=kwargs,
            backend=self.alias,
            errors=[],
            worker_ids=[],
        )
        task_enqueued.send(type(self), task_result=result)
        return result

    def get_result(self, result_id: str) -> Any:
        return self._result_of(self.queue._backend.run("get_result", self._look(result_id)))

    async def aget_result(self, result_id: str) -> Any:
        return self._result_of(await self._look(result_id))

    async def _look(self, result_id: str) -> StoredTask:
        storage: Storage = await self.queue.astorage()
        stored = (await storage.get([result_id]))[0] if isinstance(result_id, str) else None
        if stored is None:
            raise TaskResultDoesNotExist(result_id)
        return stored

    def _result_of(self, stored: StoredTask) -> Any:
        """The stored task as a result of Django."""
        task = self._shared.tasks.get(stored.func_path)
        definition = self.queue.registry.get(stored.func_path)
        if task is None or definition is None:
            missing = (
                f"{stored.id} is a task of {stored.func_path}, which the backend {self.alias!r} has not registered"
            )
            raise TaskResultDoesNotExist(missing)
        args, kwargs = definition.decode(stored.payload)
        result = _result(self.alias, task, info_of(stored), args, kwargs)
        if stored.status is SUCCESS and stored.result is not None:
            object.__setattr__(result, "_return_value", definition.codec.decode_result(stored.result))
        return result


class _Shared:
    """The queue of one alias, and its tasks by name."""

    _all: ClassVar[dict[str, _Shared]] = {}
    _lock = threading.Lock()

    def __init__(self, alias: str, options: dict[str, Any], queues: Set[str]) -> None:
        self.alias = alias
        self.settings = (dict(options), set(queues))
        self.tasks: dict[str, Any] = {}
        url = options.get("url")
        if not url:
            raise ImproperlyConfigured(
                f'TASKS[{alias!r}]["OPTIONS"]["url"] is missing: where tasks are kept, such as sqlite:////srv/jobs.db'
            )
        try:
            self.queue = TaskQueue(url, **{name: value for name, value in options.items() if name != "url"})
            for name in queues:
                queue_name("QUEUES", name)
        except (InvalidOption, InvalidOptionType, TypeError) as error:
            raise ImproperlyConfigured(f"TASKS[{alias!r}]: {error}") from error
        self.queue.registry.served_queues = tuple(sorted(queues)) or (ANY,)  # no queues: Django allows all

    @classmethod
    def of(cls, alias: str, options: dict[str, Any], queues: Set[str]) -> _Shared:
        with cls._lock:
            known = cls._all.get(alias)
            if known is None or known.settings != (options, queues):
                known = cls._all[alias] = cls(alias, options, queues)
            return known

    def know(self, task: Any) -> None:
        with self._lock:
            known = self.tasks.get(task.module_path)
            if known is None or known.func is not task.func:
                function = _as_called_by_workers(self.alias, task)
                self.queue.task(name=task.module_path, queue=task.queue_name)(function)
                self.tasks[task.module_path] = task


def _as_json(value: Any) -> Any:
    """The value as Django has it in a result, in plain types: a `TextChoices` or a safe string becomes a `str`."""
    return _plain(normalize_json(value))


def _plain(value: Any) -> Any:
    match value:
        case dict():
            return {_plain(key): _plain(item) for key, item in value.items()}
        case list():
            return [_plain(item) for item in value]
        case str() if type(value) is not str:
            return str.__str__(value)
        case int() if type(value) is not int and not isinstance(value, bool):
            return int.__index__(value)
        case float() if type(value) is not float:
            return float.__float__(value)
    return value


def _options(task: Any, now: datetime) -> Any:
    """The options of one call."""
    headers = {PRIORITY: str(task.priority), ENQUEUED_AT: now.isoformat()}
    options: dict[str, Any] = {
        "queue": task.queue_name,
        "priority": (task.priority + 100) * 10 // 201,
        "headers": headers,
    }
    if task.run_after is not None:
        when = task.run_after
        headers[RUN_AFTER] = when.isoformat()
        options["eta"] = when if timezone.is_aware(when) else timezone.make_aware(when)
    return options


def _result(alias: str, task: Any, info: TaskInfo, args: Any, kwargs: Any) -> Any:
    """The result of a task, without its return value: for callers, and for the function that runs."""
    headers = info.headers
    called = _call_of(
        task,
        backend=alias,
        queue_name=info.queue,
        priority=int(headers.get(PRIORITY, "0")),
        run_after=_time(headers.get(RUN_AFTER)),
    )
    return TaskResult(
        task=called,
        id=info.id,
        status=_STATUSES.get(info.status.value, TaskResultStatus.FAILED),
        enqueued_at=_time(headers.get(ENQUEUED_AT)) or _time(info.created_at),
        started_at=_time(_first_start(info)),
        last_attempted_at=_time(info.started_at),
        finished_at=_time(info.finished_at),
        args=list(args),
        kwargs=kwargs,
        backend=alias,
        errors=[_error(error.type, error.traceback or error.message) for error in info.errors],
        worker_ids=_workers(info),
    )


def _call_of(task: Any, **changes: Any) -> Any:
    """The task with the options of one call. They were checked when it was enqueued, and the settings may have changed
    since, so they are not checked again, as `task.using` would do.
    """
    call = object.__new__(type(task))
    for field in dataclasses.fields(task):
        object.__setattr__(call, field.name, changes.get(field.name, getattr(task, field.name)))
    return call


def _time(when: str | datetime | None) -> datetime | None:
    """As Django has times: aware with USE_TZ, else naive and local."""
    if isinstance(when, str):
        when = datetime.fromisoformat(when)
    if when is None or timezone.is_aware(when) == settings.USE_TZ:
        return when
    converted: datetime = timezone.make_aware(when) if settings.USE_TZ else timezone.make_naive(when)
    return converted


def _first_start(info: TaskInfo) -> datetime | None:
    """The start of the oldest attempt that the store has a record of: a failed attempt, or the latest one."""
    starts = [error.started_at for error in info.errors if error.started_at is not None]
    return starts[0] if starts else info.started_at


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
            if found is None:
                continue
            for name in names[end:]:
                # Not getattr: a module may import something when it is asked for an attribute. Not isinstance: a lazy
                # object of Django loads what it stands for when it is asked for its class.
                has_names = issubclass(type(found), ModuleType | type)
                found = object.__getattribute__(found, "__dict__").get(name) if has_names else None
            if issubclass(type(found), type) and issubclass(found, BaseException):
                return cast("type[BaseException]", found)
            if found is not None:
                raise ValueError(f"{self.exception_class_path!r} does not reference a valid exception.")
        raise ImportError(f"{self.exception_class_path!r} is not in an imported module; import it first")


def _workers(info: TaskInfo) -> list[str]:
    """The worker of each attempt, because Django counts them; "" if it is no longer known."""
    known = {error.attempt: error.worker for error in info.errors}
    if info.status is RUNNING or info.status is SUCCESS:
        known[info.attempt] = info.worker or ""
    return [known.get(attempt, "") for attempt in range(1, info.attempt + 1)]


# On a worker.


def _as_called_by_workers(alias: str, task: Any) -> Callable[..., Any]:
    """The function with Django's signals and context around it, and a signature without annotations."""
    function = task.func

    def begin(args: Any, kwargs: Any) -> tuple[_Attempt, tuple[Any, ...]]:
        result = _result(alias, task, current_task().info, args, kwargs)
        attempt = _Attempt(result, type(task_backends[alias]))
        task_started.send(attempt.backend, task_result=result)
        return attempt, (TaskContext(task_result=result), *args) if task.takes_context else args

    if inspect.iscoroutinefunction(function):

        @functools.wraps(function)
        async def run(*args: Any, **kwargs: Any) -> Any:
            await sync_to_async(close_old_connections)()
            attempt, given = await sync_to_async(begin)(args, kwargs)
            try:
                attempt.value = _as_json(await function(*given, **kwargs))
            except BaseException as error:
                attempt.error = error
                raise
            finally:
                await sync_to_async(attempt.finish)()
                await sync_to_async(close_old_connections)()
            return attempt.value
    else:

        @functools.wraps(function)
        def run(*args: Any, **kwargs: Any) -> Any:
            close_old_connections()
            attempt, given = begin(args, kwargs)
            try:
                attempt.value = _as_json(function(*given, **kwargs))
            except BaseException as error:
                attempt.error = error
                raise
            finally:
                attempt.finish()
                close_old_connections()
            return attempt.value

    parameters = [
        parameter.replace(annotation=parameter.empty) for parameter in inspect.signature(function).parameters.values()
    ]
    run.__signature__ = inspect.Signature(parameters[1:] if task.takes_context else parameters)  # type: ignore[attr-defined]
    return run


class _Attempt:
    """One attempt. `finish` sends the signal `task_finished`, unless the task runs again."""

    def __init__(self, result: Any, backend: type[Any]) -> None:
        self.backend = backend
        self._result = result
        self.error: BaseException | None = None
        self.value: Any = None

    def finish(self) -> None:
        current, error = current_task(), self.error
        if isinstance(error, Snooze) or (error is not None and current.failures < current.max_retries):
            return
        changes = {"finished_at": timezone.now(), "status": TaskResultStatus.SUCCESSFUL, "_return_value": self.value}
        if error is not None:
            told = "".join(traceback.format_exception(error))
            failure = _error(f"{type(error).__module__}.{type(error).__qualname__}", told)
            changes["errors"] = [*self._result.errors, failure]
            changes["status"] = TaskResultStatus.FAILED
        for name, value in changes.items():
            object.__setattr__(self._result, name, value)
        task_finished.send(self.backend, task_result=self._result)


class _Queues:
    """The queue of each backend by its alias, with all tasks of the project, for `bullpen worker`."""

    def __getattr__(self, alias: str) -> TaskQueue:
        if alias.startswith("_"):  # a question of Python, not of a person
            raise AttributeError(alias)
        import django
        from django.apps import apps
        from django.utils.module_loading import autodiscover_modules

        django.setup()
        autodiscover_modules("tasks")
        if alias not in task_backends.settings:
            names = ", ".join(sorted(task_backends.settings))
            raise ImproperlyConfigured(f"TASKS has no backend {alias!r}; it has {names}")
        backend = task_backends[alias]
        if not isinstance(backend, BullpenBackend):
            raise ImproperlyConfigured(f"TASKS[{alias!r}] is a {type(backend).__name__}, not a BullpenBackend")
        # Also tasks that were defined for another backend: task.using(backend=…) sends them to this one.
        for config in apps.get_app_configs():
            module = sys.modules.get(f"{config.name}.tasks")
            for value in list(vars(module).values()) if module is not None else ():
                if isinstance(value, Task):
                    backend._shared.know(value)
        return backend.queue


queues = _Queues()


def __getattr__(name: str) -> Any:
    """`queue`: the queue of the default backend."""
    if name != "queue":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return queues.default
