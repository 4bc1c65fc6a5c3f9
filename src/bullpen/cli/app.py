"""Resolves APP of the command line to a TaskQueue.

`shop.jobs:queue` is an attribute of a module, `jobs.py:queue` an attribute of a file. Without an attribute, APP means
the only TaskQueue of the module. Modules in the current folder can be imported.
"""

from __future__ import annotations

import importlib
import os
import re
import sys
import threading
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType

from bullpen.cli.command import CommandError, ExitCode
from bullpen.errors import BullpenError, closest
from bullpen.tasks.client.function import TaskFunction
from bullpen.tasks.client.task_queue import TaskQueue
from bullpen.tasks.storage.open import looks_like_address, masked, names_a_path

FILES_LOOKED_AT = 100
SLOW_IMPORT = 5.0  # seconds
_PACKAGE = str(Path(__file__).parents[1]) + os.sep
_NOT_THEIRS = (_PACKAGE, str(Path(os.__file__).parent) + os.sep, "<")
_APP = re.compile(r"[\w./\\~ (),+-]*(:[\w.]*)?")
HOW = "APP is module:attribute or file.py:attribute, such as app:queue; without an attribute, the only TaskQueue"


class WrongApp(CommandError):
    """APP names no TaskQueue. The message says where the command has searched."""

    def __init__(self, app: str, problem: str, hint: str = HOW) -> None:
        super().__init__(f"cannot use {app!r}: {problem}\n  {hint}", ExitCode.USAGE)


class BrokenApp(CommandError):
    """The import of APP raised."""


def load_queue(app: str) -> TaskQueue:
    """Import APP and return its TaskQueue. Raises WrongApp and BrokenApp."""
    if app.startswith("pid:["):
        hint = "unset BULLPEN_APP, or set it to APP; the mark is now called BULLPEN_APP_PROCESS"
        raise WrongApp(app, "an older Bullpen marked the processes of an app with BULLPEN_APP", hint)
    _reject_address(app)
    where, colon, attribute = app.rpartition(":") if ":" in app else (app, "", "")
    if not where or (colon and not attribute):
        raise WrongApp(app, "one side of the colon is empty" if colon else "it is empty")
    module = import_module(where, app)
    return _attribute(module, attribute, app) if attribute else _only_queue(module, app)


def _reject_address(app: str) -> None:
    """Raises WrongApp before anything of it is repeated: a part of it may be a password."""
    if looks_like_address(app):
        hint = "commands that read a store take --url; a worker needs the code of its tasks: APP, such as app:queue"
        raise WrongApp(masked(app), "this is the address of a store, not an APP", hint)
    if not _APP.fullmatch(app) and not names_a_path(app):
        raise WrongApp("***", "it has characters that are in no module, attribute or path")


def import_module(where: str, app: str) -> ModuleType:
    """Import the module with this name, or from this file."""
    _reject_address(app)
    if where.endswith(".py") or "/" in where or os.sep in where:
        return _import_file(Path(where), app)
    _make_importable(Path.cwd())
    try:
        return _import(where, app)
    except ModuleNotFoundError as error:
        if not _is_itself(error.name, where):
            raise _broken(app, error) from error
        tried = f"there is no module {error.name!r} in {Path.cwd()} or on sys.path"
        raise WrongApp(app, tried, _suggestion(where)) from None


def _make_importable(folder: Path) -> None:
    if str(folder) not in sys.path[:1]:
        sys.path.insert(0, str(folder))


def _import(name: str, app: str) -> ModuleType:
    try:
        with _patience(app):
            return importlib.import_module(name)
    except ModuleNotFoundError:
        raise
    except SystemExit as error:
        raise BrokenApp(
            f"{app!r} exited during its import (exit code {error.code}); put the code of the script below: "
            "if __name__ == '__main__':"
        ) from None
    except Exception as error:
        raise _broken(app, error) from error


@contextmanager
def _patience(app: str) -> Iterator[None]:
    """Print where a slow import hangs: a script may wait for a result of the worker that imports it."""
    main = threading.get_ident()

    def complain() -> None:
        frame = sys._current_frames().get(main)  # noqa: SLF001 — there is no other way
        where = [frame for frame in traceback.extract_stack(frame) if not frame.filename.startswith(_NOT_THEIRS)]
        place = f", at {where[-1].filename}:{where[-1].lineno}" if where else ""
        message = f"bullpen: the import of {app!r} is still running{place}. Put the code of the script below: "
        print(message + "if __name__ == '__main__':", file=sys.stderr, flush=True)

    timer = threading.Timer(SLOW_IMPORT, complain)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()
        timer.join()


def _broken(app: str, error: BaseException) -> BrokenApp:
    """With the frames of user code, without those of Bullpen and of the import system. An error of Bullpen needs no
    frames of Bullpen.
    """
    frames = traceback.extract_tb(error.__traceback__)
    ours = _PACKAGE if isinstance(error, BullpenError) else __file__
    of_others = [frame for frame in frames if not ("importlib" in frame.filename or frame.filename.startswith(ours))]
    told = "".join([*traceback.format_list(of_others), *traceback.format_exception_only(error)])
    return BrokenApp(f"{app!r} cannot be imported:\n{told}".rstrip())


def _is_itself(missing: str | None, wanted: str) -> bool:
    return missing is not None and (wanted == missing or wanted.startswith(f"{missing}."))


def _suggestion(where: str) -> str:
    """A hint for a module that does not exist."""
    module, dot, attribute = where.rpartition(".")
    if dot and module in sys.modules and isinstance(getattr(sys.modules[module], attribute, None), TaskQueue):
        return f"did you mean {module}:{attribute}?"
    queues = _files_with_queues()
    close = closest(where, [file.stem for file in queues])
    if close:
        return f"did you mean {close}?"
    return f"files with a TaskQueue: {', '.join(str(file) for file in queues[:5])}" if queues else HOW


def _files_with_queues() -> list[Path]:
    """Files in the current folder that seem to create a TaskQueue."""
    found = []
    for file in sorted(Path().glob("*.py"))[:FILES_LOOKED_AT]:
        try:
            if "TaskQueue(" in file.read_text(errors="replace"):
                found.append(file)
        except OSError:
            continue
    return found


def _import_file(path: Path, app: str) -> ModuleType:
    """Import a file under its module name, within its package: a script registers its functions under this name."""
    if not path.is_file():
        raise WrongApp(app, f"there is no file {path.absolute()}", _suggestion(path.stem))
    path = path.resolve()
    folder, names = path.parent, [path.stem]
    while (folder / "__init__.py").is_file():
        folder, names = folder.parent, [folder.name, *names]
    if names[-1] == "__init__":
        names.pop()
    name = ".".join(names)
    _make_importable(folder)
    try:
        module = _import(name, app)
    except ModuleNotFoundError as error:
        raise _broken(app, error) from error
    loaded_from = getattr(module, "__file__", None)
    if loaded_from is None or Path(loaded_from).resolve() != path:
        problem = f"the name {name!r} is taken by another module ({loaded_from or 'one of Python itself'})"
        raise WrongApp(app, problem, f"rename {path.name}")
    return module


def _attribute(module: ModuleType, attribute: str, app: str) -> TaskQueue:
    value: object = module
    for name in attribute.split("."):
        try:
            value = getattr(value, name)
        except AttributeError:
            problem = f"{module.__name__} ({module.__file__}) has no {attribute!r}"
            raise WrongApp(app, problem, _there_is(module)) from None
        except Exception as error:  # a module may create it on access, as the one for Django does
            raise _broken(app, error) from error
    if not isinstance(value, TaskQueue):
        kind = "a task" if isinstance(value, TaskFunction) else f"a {type(value).__name__}"
        raise WrongApp(app, f"{attribute!r} is {kind}, not a TaskQueue", _there_is(module))
    return value


def _only_queue(module: ModuleType, app: str) -> TaskQueue:
    queues = _queues_of(module)
    if not queues:
        raise WrongApp(app, f"{module.__name__} ({module.__file__}) has no TaskQueue")
    if len({id(queue) for queue in queues.values()}) > 1:
        which = ", ".join(f"{app}:{name}" for name in queues)
        raise WrongApp(app, "it has several TaskQueues", f"name one: {which}")
    return next(iter(queues.values()))


def _there_is(module: ModuleType) -> str:
    queues = _queues_of(module)
    return f"its TaskQueues: {', '.join(queues)}" if queues else f"it has no TaskQueue at all. {HOW}"


def _queues_of(module: ModuleType) -> dict[str, TaskQueue]:
    return {name: value for name, value in vars(module).items() if isinstance(value, TaskQueue)}
