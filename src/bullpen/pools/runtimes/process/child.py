"""The worker's side: it starts, runs the requests that the app sends, and ends. It also has the objects that the app
sends in place of those that cannot leave it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import fcntl
import os
import pickle
import resource
import select
import signal
import socket
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from typing import Any, Literal, NoReturn

from bullpen.pools.runtimes.process import failures, wire
from bullpen.pools.runtimes.process.arena import MARKS, Inbox, Outbox, ResultLog, mark_begun, open_marks
from bullpen.pools.runtimes.process.calls import CallThreads, MainThreadCalls, RequestCancelled

importing_main = False  # the app's script is being imported: it must not start workers
has_main = False  # it was imported; `multiprocessing` sets `__mp_main__` too, when it is imported
of_an_app = False  # this process is a worker or a forkserver


def main() -> None:
    """The worker as a program. Its arguments are a path, file descriptors, and the arguments of the app."""
    global of_an_app  # noqa: PLW0603 — one process, one app
    of_an_app = True
    _, _, channel, death, shared, *sys.argv = sys.argv
    files = [int(fd) for fd in shared.split()]
    keep_to_itself(int(channel), int(death), *files)
    die_with_the_app(int(death))
    prepare()
    run(int(channel), files)


def keep_to_itself(*fds: int) -> None:
    """No program that this process starts gets these descriptors."""
    for fd in fds:
        os.set_inheritable(fd, False)


def prepare() -> None:
    """Set signals and standard streams. A spare process does this before it has orders."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the app handles Ctrl-C
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    faulthandler.enable(2)
    faulthandler.register(wire.DUMP, 2, all_threads=True)
    sys.stdin = open(0, closefd=False)  # noqa: SIM115
    sys.stdout = open(1, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115
    sys.stderr = open(2, "w", buffering=1, closefd=False, errors="backslashreplace")  # noqa: SIM115


def run(channel: int, shared: list[int]) -> NoReturn:
    """Be a worker until the app says stop. `prepare` and `die_with_the_app` were called before."""
    global worker  # noqa: PLW0603 — one process, one worker
    code = 1
    try:
        worker = ChildWorker(socket.socket(fileno=channel), shared)
        os.register_at_fork(after_in_child=worker.note_fork)
        code = worker.live()
    except (EOFError, ConnectionError):
        code = 0  # the app has ended, or has closed the channel
    except BaseException:
        sys.excepthook(*sys.exc_info())  # the app shows the end of stderr in its error
    finally:
        _leave(code)


def _leave(code: int) -> NoReturn:
    if "multiprocessing.util" in sys.modules:  # its queues are flushed by threads of this process
        with contextlib.suppress(BaseException):
            sys.modules["multiprocessing.util"]._exit_function()  # noqa: SLF001 — it has no public name
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(BaseException):
            stream.flush()
    os._exit(code)


def die_with_the_app(death: int) -> int:
    """Have this process killed when the last write end of the pipe `death` is closed, whatever it does then.

    The kernel sends the signal, so this works even if C code holds the GIL. The signal is a property of the open file,
    which all workers share, so this opens the pipe again. The returned descriptor has to stay open.
    """
    own = _ask_the_kernel(death)
    if own is None:
        threading.Thread(target=_wait_for_the_end, args=(death,), daemon=True).start()
    _end_if_too_late(death)
    return death if own is None else own


@contextlib.contextmanager
def dying_with_the_app(death: int) -> Iterator[None]:
    """Inside, the kernel kills this process when the app ends, where it can. No thread is started."""
    own = _ask_the_kernel(death)
    _end_if_too_late(death)
    try:
        yield
    finally:
        if own is not None:
            fcntl.fcntl(own, fcntl.F_SETFL, os.O_NONBLOCK)  # a child that was forked in the meantime may keep it open
            os.close(own)


def _ask_the_kernel(death: int) -> int | None:
    try:
        own = os.open(f"/proc/self/fd/{death}", os.O_RDONLY | os.O_NONBLOCK)
        fcntl.fcntl(own, fcntl.F_SETOWN, os.getpid())
        fcntl.fcntl(own, fcntl.F_SETSIG, signal.SIGKILL)
        fcntl.fcntl(own, fcntl.F_SETFL, fcntl.fcntl(own, fcntl.F_GETFL) | os.O_ASYNC)
    except (OSError, AttributeError):  # not on Linux, or without /proc
        return None
    return own


def _end_if_too_late(death: int) -> None:
    """End now if the app has ended before the kernel was asked."""
    poll = select.poll()
    poll.register(death, 0)
    if poll.poll(0):
        os._exit(1)


def _wait_for_the_end(death: int) -> None:
    with contextlib.suppress(OSError):
        os.read(death, 1)  # it is never written to
    os.kill(os.getpid(), signal.SIGKILL)


class ChildWorker:
    """The worker in this process."""

    def __init__(self, channel: socket.socket, shared: list[int]) -> None:
        self.forked = False  # this is a process that the user's code has forked
        self.chunks: dict[int, tuple[list[Any], ...]] = {}  # the items of running chunks, by the id of the tuple
        self._parents_items: list[list[Any]] = []  # in a forked process
        self.has_memory_limit = _has_memory_limit()  # now: a task may raise the soft limit to the hard one
        self._channel = channel
        self._channel_file: os.stat_result | None = None  # what its descriptor stands for, if `send` has to check that
        self._inbox_memory = Inbox(shared[0]) if shared else None
        self._outbox_memory = Outbox(shared[1], MARKS) if shared else None
        self._begun = open_marks(shared[1]) if shared else memoryview(bytearray(8)).cast("Q")
        self.results = ResultLog(shared[2] if shared else None)
        self._reader = wire.FrameReader()
        self._inbox: deque[wire.Frame] = deque()
        self._sending = threading.Lock()
        self._main_error: BaseException | None = None
        self.instance: Any = None
        self.calls: MainThreadCalls | CallThreads = MainThreadCalls(self)

    def live(self) -> int:
        """Handle frames from the app until it says stop; the exit code."""
        while True:
            kind, id, data, buffers = self.next_frame()
            if kind == wire.CALL:
                self.calls.run(id, data, buffers)
            elif kind == wire.FREED:
                self.use_again(data)
            elif kind == wire.CREDIT:
                self.calls.credit(id, int.from_bytes(data, "little"))
            elif kind == wire.CANCEL:
                self.calls.cancel(id)
            elif kind == wire.RECALL:
                self.calls.recall()
            elif kind == wire.MAIN:
                self._import_main(data)
            elif kind == wire.AUTHKEY:
                self._take_authkey(data)
            elif kind == wire.BEGIN:
                if not self._begin(data, buffers):
                    return 1
            elif kind == wire.CAPACITY:
                if id > 1:
                    self.calls = CallThreads(self, id)
                    self._channel_file = os.fstat(self._channel.fileno())
            elif kind == wire.STOP:
                self._close()
                return 0

    def next_frame(self) -> wire.Frame:
        if self.forked:
            self.end_forked()
        while True:
            while not self._inbox:
                self._inbox.extend(self._reader.read(self._channel))
            frame = self._inbox.popleft()
            if not frame[0] & wire.SHARED:
                return frame
            try:
                return wire.unpack_shared(frame, self._inbox_memory)
            except Exception as error:  # usually there is no memory
                if frame[0] & ~wire.SHARED != wire.CALL:
                    raise
                self._report_unpicklable(frame[1], error)

    def read_what_is_there(self) -> None:
        """Read without waiting."""
        if self.forked:
            self.end_forked()
        with contextlib.suppress(EOFError, ConnectionError):  # the next blocking read notices it
            while select.select([self._channel], [], [], 0)[0]:
                self._inbox.extend(self._reader.read(self._channel))

    def take_notices(self) -> list[tuple[int, int]]:
        """Take out the frames that concern the running request or recall others: their kinds and request ids."""
        found = [frame for frame in self._inbox if _is_notice(frame)]
        for frame in found:
            self._inbox.remove(frame)
        return [(kind, id) for kind, id, _, _ in found]

    def take_calls(self) -> list[int]:
        """Take out the calls that have not begun; their ids."""
        calls = [frame for frame in self._inbox if frame[0] & ~wire.SHARED == wire.CALL]
        for frame in calls:
            self._inbox.remove(frame)
        return [frame[1] for frame in calls]

    def use_again(self, places: Any) -> None:
        """Reuse places in shared memory that the app no longer uses."""
        assert self._outbox_memory is not None
        self._outbox_memory.freed(places)

    def has(self, id: int) -> bool:
        """Whether that request has arrived and not begun."""
        return any(frame[0] & ~wire.SHARED == wire.CALL and frame[1] == id for frame in self._inbox)

    def note_fork(self) -> None:
        self.forked = True
        for columns in self.chunks.values():  # the items behind the one that has forked are its parent's
            self._parents_items += map(list.copy, columns)  # no destructor runs here
            for column in columns:
                column.clear()

    def end_forked(self, error: BaseException | None = None) -> NoReturn:
        """End this process, which the user's code has forked and which comes back here: the channel belongs to its
        parent. It ends as a script does; `error` is what it has raised.
        """
        code = 0
        if isinstance(error, SystemExit):
            code = error.code if isinstance(error.code, int) else int(error.code is not None)
        elif error is not None:
            code = 1
            sys.excepthook(type(error), error, error.__traceback__)
        _leave(code)

    def send(self, kind: int, id: int, data: bytes = b"", buffers: Any = ()) -> None:
        if self.forked:
            self.end_forked()
        pieces = wire.pack_shared(kind, id, data, buffers, self._outbox_memory)
        with self._sending:
            if self._inbox_memory is not None and self._inbox_memory.freed:
                pieces = [*wire.pack(wire.FREED, 0, self._inbox_memory.take_freed()), *pieces]
            try:
                if self._channel_file is not None:
                    self._check_channel(self._channel_file)
                wire.send_all(self._channel, pieces)
            except ConnectionError:  # the app has ended
                raise
            except BaseException:  # raised by a signal handler of the user's: a part of the frame may have been sent
                sys.excepthook(*sys.exc_info())
                _leave(1)

    def _check_channel(self, expected: os.stat_result) -> None:
        """Raise if a request has replaced the descriptor of the channel. The main thread, which waits at the channel,
        keeps that open, so the app would not notice it.
        """
        if not os.path.samestat(os.fstat(self._channel.fileno()), expected):
            raise RuntimeError("a request has closed the descriptor of the worker's channel, and opened another there")

    def send_error(self, kind: int, id: int, error: BaseException, hide: int = 0) -> None:
        try:
            described = wire.dumps(failures.describe(error, hide))[0]
        except MemoryError:  # its name and its text, which is cut, need less
            described = wire.dumps(failures.describe(error, hide, by_name=True))[0]
        self.send(kind, id, described)

    # Start and end.

    def _take_authkey(self, key: Any) -> None:
        from multiprocessing.process import current_process

        current_process().authkey = bytes(key)

    def _begin(self, data: Any, buffers: Any) -> bool:
        try:
            initializer, initargs, keeps = wire.loads(data, buffers)
            if initializer is not None:
                initializer(*initargs)
            declared = None
            if self.forked:
                self.end_forked()
            if keeps is not None:
                self.instance = keeps()
                warm_up = getattr(self.instance, "warm_up", None)
                if self.forked:
                    self.end_forked()
                if warm_up is not None:
                    warm_up()
                declared = getattr(self.instance, "capacity", None)
            try:
                answer, _ = wire.dumps((type(self.instance).__qualname__, declared))
            except Exception:
                answer, _ = wire.dumps((type(self.instance).__qualname__, repr(declared)))
        except BaseException as error:
            if self.forked:
                self.end_forked(error)
            _explain_by(error, self._main_error)
            self.send_error(wire.BROKEN, 0, error, hide=1)
            return False
        self.send(wire.READY, 0, answer)
        return True

    def _close(self) -> None:
        self.calls.end()
        close = getattr(self.instance, "close", None)
        if close is None:
            return
        try:
            close()
        except BaseException as error:  # the worker ends in any case
            self.send_error(wire.BROKEN, 0, error, hide=1)

    def _import_main(self, data: Any) -> None:
        try:
            import_main(*wire.loads(data, ()))
        except BaseException as error:
            self._main_error = error

    # Requests.

    def note_begin(self, id: int) -> None:
        """Tell the app that a request begins. One thread at a time calls this."""
        mark_begun(self._begun, id)

    def attempt(self, id: int, data: Any, buffers: Any, running: Callable[[int], Any]) -> None:
        """Run one request and send its outcome. It may be interrupted inside `running(id)` only."""
        try:
            fn, args, kwargs = wire.loads(data, buffers)
        except BaseException as error:
            self._report_unpicklable(id, error)
            return
        if self.forked:  # by an argument that was unpickled
            self.end_forked()
        received = wire.size(data, buffers)
        del data, buffers
        begun = time.perf_counter()
        try:
            with running(id):
                value = fn(*args, **kwargs) if kwargs else fn(*args)
        except BaseException as error:
            if self.forked:
                self.end_forked(error)
            if self._is_ruined_by(error):
                self.send_error(wire.BROKEN, id, error, hide=1)
                return
            self.send_error(wire.FAILED, id, error, hide=1)
            return
        fn = args = kwargs = None
        if type(value) is SentOutcomes:
            value.size = received
        try:
            answer, extra = _dumps_result(value)
        except BaseException as error:
            if self._is_ruined_by(error):
                self.send_error(wire.BROKEN, id, error, hide=1)
                return
            self.send_error(wire.UNPICKLABLE, id, _unpicklable_result(value, error), hide=1)
            return
        quick = time.perf_counter() - begun < wire.QUICK_SECONDS
        self.send(wire.QUICK if quick else wire.DONE, id, answer, extra)
        if type(value) is SentOutcomes:
            self.results.end(id)

    def _report_unpicklable(self, id: int, error: BaseException) -> None:
        """Report that a request cannot be unpickled."""
        if self._is_ruined_by(error):
            self.send_error(wire.BROKEN, id, error, hide=2)
            return
        _explain_by(error, self._main_error)
        self.send_error(wire.UNPICKLABLE, id, error, hide=2)

    def _is_ruined_by(self, error: BaseException) -> bool:
        """Whether this worker has to be replaced: it raised `WorkerBroken`, or has reached its memory limit."""
        if _says_broken(error):
            return True
        if not issubclass(type(error), MemoryError) or not self.has_memory_limit:
            return False
        _lift_memory_limit()
        return True


def _is_notice(frame: wire.Frame) -> bool:
    kind, _, data, _ = frame
    return kind in (wire.CANCEL, wire.RECALL) or (kind == wire.CREDIT and not any(data))  # 0: the reader has left


worker: ChildWorker  # this process


# What the app sends in place of objects that cannot leave it.


def call_method(name: str, /, *args: Any, **kwargs: Any) -> Any:
    """Call a method of this worker's instance."""
    method = getattr(worker.instance, name, None)
    if not callable(method):
        from bullpen.errors import NoSuchMethod

        raise NoSuchMethod(name, "is no method of it", owner=type(worker.instance).__qualname__, methods=())
    return method(*args, **kwargs)


class RemoteListener:
    """Stands for a `Listener` of the app: sends it the values that a function reports while it runs."""

    def __init__(self) -> None:
        self._id: int | None = None  # of the request that it was first used in

    def __reduce__(self) -> tuple[type, tuple[()]]:
        return RemoteListener, ()

    def __call__(self, value: Any) -> None:
        if worker.forked:
            raise RuntimeError("a process that a worker has forked cannot report progress: the call is its parent's")
        if self._id is None:
            self._id = worker.calls.current()
        data, buffers = wire.dumps(value)
        with worker.calls.at_wire():
            worker.send(wire.NEWS, self._id, data, buffers)


class SentOutcomes:
    """The outcomes of several items: values, described errors by their place, the seconds that all took, and the bytes
    that were received for them.
    """

    def __init__(self, values: list[Any], errors: dict[int, list[failures.Entry]], seconds: float) -> None:
        self.values = values
        self.errors = errors
        self.seconds = seconds
        self.size = 0

    def keep_picklable(self) -> None:
        """Replace the values that cannot be pickled by errors."""
        for place, value in enumerate(self.values):
            try:
                wire.dumps(value)
            except BaseException as error:
                self.values[place] = None
                self.errors[place] = failures.describe(_unpicklable_result(value, error))


def run_items(fn: Callable[..., Any], *columns: list[Any]) -> SentOutcomes:
    """Call a function once for each item."""
    values: list[Any] = []
    errors: dict[int, list[failures.Entry]] = {}
    count = len(columns[0]) if columns else 0
    calls = map(fn, *columns) if columns else iter(())
    begun = time.perf_counter()
    try:
        worker.chunks[id(columns)] = columns
        while len(values) < count:
            try:
                values.extend(calls)  # keeps the results before an error, and goes on behind the item that failed
                if worker.forked:
                    worker.end_forked()
                if len(values) < count:  # an error that looked like the end of the items
                    raise StopIteration
            except BaseException as error:
                if worker.forked:
                    worker.end_forked(error)
                if _ends_all(error) or len(values) == count:
                    raise
                errors[len(values)] = failures.describe(error, hide=1)
                values.append(None)
    finally:
        worker.chunks.pop(id(columns), None)
    return SentOutcomes(values, errors, time.perf_counter() - begun)


def run_logged_items(fn: Callable[..., Any], *columns: list[Any]) -> SentOutcomes:
    """`run_items` that logs each outcome as soon as it is there, so that it outlives this process."""
    return _run_logged(fn, {}, columns)


def _run_logged(
    fn: Callable[..., Any], unpicklable: dict[int, list[failures.Entry]], columns: tuple[list[Any], ...]
) -> SentOutcomes:
    log, id = worker.results, worker.calls.current()
    values: list[Any] = []
    errors: dict[int, list[failures.Entry]] = {}

    def fails(described: list[failures.Entry]) -> None:
        errors[len(values)] = described
        values.append(None)
        log.add(id, wire.dumps(described)[0], True)

    begun = time.perf_counter()
    log.begin(id)
    items = zip(*columns, strict=True)
    for place in range((len(columns[0]) if columns else 0) + len(unpicklable)):
        if place in unpicklable:
            fails(unpicklable[place])
            continue
        try:
            value = fn(*next(items))
            if worker.forked:
                worker.end_forked()
            data = _dumps_inline(value)
        except BaseException as error:
            if worker.forked:
                worker.end_forked(error)
            if _ends_all(error):
                raise
            fails(failures.describe(error, hide=1))
        else:
            values.append(value)
            log.add(id, data, False)
    return SentOutcomes(values, errors, time.perf_counter() - begun)


def _dumps_inline(value: Any) -> bytes:
    """A pickle of a result, with its buffers inside."""
    try:
        return pickle.dumps(value, 5)
    except Exception as error:
        cloudpickle = wire.by_value_pickler()
        if cloudpickle is not None:
            with contextlib.suppress(Exception):
                return cloudpickle.dumps(value, 5)  # type: ignore[no-any-return]
        raise _unpicklable_result(value, error) from None


def run_sendable_items(
    fn: Callable[..., Any], logged: bool, unpicklable: dict[int, list[failures.Entry]], *columns: list[Any]
) -> SentOutcomes:
    """`run_items`, or `run_logged_items`, for the items that could be pickled; `unpicklable` has the errors of the
    others.
    """
    if logged:
        return _run_logged(fn, unpicklable, columns)
    ran = run_items(fn, *columns)
    values: list[Any] = [None] * (len(ran.values) + len(unpicklable))
    places = [place for place in range(len(values)) if place not in unpicklable]
    for place, value in zip(places, ran.values, strict=True):
        values[place] = value
    errors = {places[number]: error for number, error in ran.errors.items()}
    return SentOutcomes(values, errors | unpicklable, ran.seconds)


def run_readable_items(fn: Callable[..., Any], logged: bool, items: list[tuple[bytes, list[Any]]]) -> SentOutcomes:
    """`run_items`, or `run_logged_items`, for the items that can be unpickled."""
    readable: list[tuple[Any, ...]] = []
    unpicklable: dict[int, list[failures.Entry]] = {}
    for place, (data, buffers) in enumerate(items):
        try:
            readable.append(wire.loads(data, buffers))
            if worker.forked:
                worker.end_forked()
        except BaseException as error:
            if _ends_all(error):
                raise
            unpicklable[place] = failures.describe(_unreadable_item(error))
    return run_sendable_items(fn, logged, unpicklable, *map(list, zip(*readable, strict=True)))


class SendItems:
    """The call of a stream: send each item that a function yields, as soon as the reader has room for it."""

    def __init__(self, fn: Callable[..., Any], name: str) -> None:
        self.fn = fn
        self.name = name

    def __reduce__(self) -> tuple[type, tuple[Callable[..., Any], str]]:
        return SendItems, (self.fn, self.name)

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        made = self.fn(*args, **kwargs)
        calls, id = worker.calls, worker.calls.current()
        items = _each_async(made) if hasattr(made, "__aiter__") else _iterator(made, self.name)
        try:
            for item in items:
                data, buffers = wire.dumps(item)
                if worker.forked:  # no credit would ever come
                    worker.end_forked()
                if not calls.take_credit(id):
                    break
                with calls.at_wire():
                    worker.send(wire.ITEM, id, data, buffers)
        finally:
            close = getattr(items, "close", None)
            if close is not None and hasattr(items, "send"):
                close()


def _iterator(made: Any, name: str) -> Iterator[Any]:
    try:
        return iter(made)
    except TypeError:
        message = f"{name} returned {type(made).__name__}; stream() needs a function that returns an iterable"
        raise TypeError(message) from None


def _each_async(made: Any) -> Iterator[Any]:
    """The items of an async generator, which runs on an event loop of its own."""
    import asyncio

    items = made.__aiter__()

    async def following() -> Any:
        return await items.__anext__()

    async def finish() -> None:
        close = getattr(items, "aclose", None)
        if close is not None:
            await close()

    with asyncio.Runner() as runner:
        try:
            while True:
                try:
                    item = runner.run(following())
                except StopAsyncIteration:
                    return
                yield item
        finally:
            runner.run(finish())


# The user's modules, and the script.


def imports_here() -> Literal["module", "script"] | None:
    """What this thread imports now, if this process is a worker or a forkserver. A pool that the imported module makes
    must not start workers, because these would import the same module and start others.
    """
    frame = sys._getframe() if of_an_app else None  # noqa: SLF001 — importers do not announce themselves
    while frame is not None:
        if frame.f_code is import_main.__code__:
            return "script"
        if frame.f_code.co_filename.startswith("<frozen importlib"):
            return "module"
        frame = frame.f_back
    return None


def import_main(name: str | None, path: str | None) -> None:
    """Import the app's script, by its module name or its file, so that pickles can refer to what it defines."""
    global importing_main, has_main  # noqa: PLW0603 — one process, one script
    import runpy
    import types

    if has_main:
        return
    module = types.ModuleType("__mp_main__")
    importing_main = True
    try:
        if name is not None:
            found = runpy.run_module(name, run_name="__mp_main__", alter_sys=True)
        else:
            assert path is not None
            found = runpy.run_path(path, run_name="__mp_main__")
    finally:
        importing_main = False
    module.__dict__.update(found)
    sys.modules["__main__"] = sys.modules["__mp_main__"] = module
    has_main = True


# Errors.


def _explain_by(error: BaseException, reason: BaseException | None) -> None:
    """Set the failed import of the script as the cause: a name may be missing because of it."""
    if reason is not None and error.__cause__ is None:
        error.__cause__ = reason


def _says_broken(error: BaseException) -> bool:
    """Whether it is a `WorkerBroken`. Then the user's code has imported that module."""
    errors = sys.modules.get("bullpen.errors")
    return errors is not None and issubclass(type(error), errors.WorkerBroken)


def _ends_all(error: BaseException) -> bool:
    """Whether it ends the whole call, not only the item that raised it."""
    if issubclass(type(error), MemoryError):
        return worker.has_memory_limit
    return issubclass(type(error), RequestCancelled) or _says_broken(error)


def _has_memory_limit() -> bool:
    """Whether this process has a memory limit that it can lift."""
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    return soft != hard


def _lift_memory_limit() -> None:
    """Lift the memory limit, to have memory for the report."""
    hard = resource.getrlimit(resource.RLIMIT_DATA)[1]
    resource.setrlimit(resource.RLIMIT_DATA, (hard, hard))


def _dumps_result(value: Any) -> tuple[bytes, list[Any]]:
    try:
        return wire.dumps(value)
    except BaseException:
        if not isinstance(value, SentOutcomes):
            raise
    value.keep_picklable()
    return wire.dumps(value)


def _unreadable_item(error: BaseException) -> BaseException:
    from bullpen.pools.runtimes.process.pickle_errors import unreadable

    return unreadable("the call", error, ran=False)


def _unpicklable_result(value: Any, error: BaseException) -> BaseException:
    from bullpen.pools.runtimes.process.pickle_errors import not_picklable

    return not_picklable("the result", value, error, wire.dumps, ran=True)
