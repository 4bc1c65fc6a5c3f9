"""One worker process, as the app sees it: the frames that it gets, and the frames that it sends."""

from __future__ import annotations

import contextlib
import functools
import os
import socket
import sys
from collections.abc import Callable
from typing import Any, Literal, Protocol

from bullpen import primitives
from bullpen.errors import (
    MissingMainGuard,
    NotPicklable,
    RemoteError,
    WorkerLost,
    WorkerOutOfMemory,
    WorkerStartFailed,
)
from bullpen.pools.dispatch.request import DONE, FAILED, Request
from bullpen.pools.dispatch.worker import Worker
from bullpen.pools.runtimes.port import (
    CallsMany,
    Listener,
    Outcomes,
    ProducesItems,
    ShowsWaitingFunction,
    SupportsPrefetch,
    WorkerEvents,
)
from bullpen.pools.runtimes.process import arena, child, failures, forkserver_client, wire
from bullpen.pools.runtimes.process.calls import RequestCancelled
from bullpen.pools.runtimes.process.io_thread import Channel, io_thread
from bullpen.pools.runtimes.process.items import raise_
from bullpen.pools.runtimes.process.output import Output
from bullpen.pools.runtimes.process.pickle_errors import unreadable
from bullpen.pools.runtimes.process.pickling import (
    Encoded,
    encode_call,
    encode_each,
    encode_setup,
    is_of_main,
    main_module,
)
from bullpen.pools.runtimes.process.supervised import Supervised, pipe_from_it
from bullpen.telemetry import logger

Start = Literal["forkserver", "spawn"]

ANSWERS = (wire.QUICK, wire.DONE, wire.FAILED, wire.UNPICKLABLE)
OF_A_CALL = (*ANSWERS, wire.ITEM)
MOST_PREFETCHED = 32  # requests that a quick worker may have at once
STREAK = 4  # quick answers in a row that make a quick worker
SMALL = 16 * 1024  # bytes; a larger request is not prefetched
LOOK_EVERY = 0.5  # seconds between two looks at a frame that has arrived in part
MOST_LOOKS = 60  # looks, not seconds: a machine that sleeps, or an app that was stopped, wakes up to one look
PATIENCE = 0.02  # seconds after which a quick worker that has not answered is stuck


class ProcessOptions(Protocol):
    """The options that all worker processes of one runtime share."""

    initializer: Callable[..., object] | None
    initargs: tuple[Any, ...]
    preload: tuple[str, ...]
    start_method: Start
    cancel_grace: float
    stop_grace: float | None
    max_rss: int | None
    memory_limit: int | None
    needs_main: bool  # a worker has been sent a function or a class of the app's script


class Process(Supervised):
    """One worker process that runs Python functions."""

    __slots__ = (
        "_awaits_rest",
        "_begun",
        "_channel",
        "_each",
        "_has_authkey",
        "_has_main",
        "_inbox",
        "_log",
        "_misbehaves",
        "_nudged_early",
        "_options",
        "_outbox",
        "_prefetcher",
        "_recalls",
        "_rests",
        "_sent",
        "_stdout",
        "_streak",
        "_watched",
    )

    def __init__(self, worker: Worker, events: WorkerEvents, options: ProcessOptions) -> None:
        super().__init__(worker, events, options.cancel_grace, options.stop_grace, options.max_rss)
        self._options = options
        self._prefetcher = events if isinstance(events, SupportsPrefetch) else None
        self._sent = 0  # the number of the last request that was sent; a later one is only in `_requests`
        self._rests: set[Request] = set()  # calls of several items that go on elsewhere, because it has died
        self._each: set[int] = set()  # calls of several items that were sent a second time, item by item
        self._recalls = 0  # recalls without an answer yet: meanwhile the worker gets no prefetched requests
        self._nudged_early = False  # a signal was sent before the frame that it announces, because the socket was full
        self._streak = 0  # quick answers in a row
        self._watched = False  # a timer checks whether it makes progress
        self._awaits_rest = False  # a timer looks for the rest of a frame
        self._has_main = False
        self._has_authkey = False
        self._begun: memoryview | None = None  # once it has ended: the marks of the calls that it has begun
        self._misbehaves = False  # it broke the protocol: its messages are ignored

    # Start.

    def _open(self, opened: contextlib.ExitStack, its_own: list[int]) -> None:
        mine, theirs = socket.socketpair()
        opened.enter_context(mine)
        its_own.append(theirs.detach())
        self._channel = Channel(mine)
        self._stdout = Output(pipe_from_it(opened, its_own), self._worker.name, "stdout")
        self._stderr = Output(pipe_from_it(opened, its_own), self._worker.name, "stderr")
        shared = arena.new_files()
        for fd in shared:
            opened.callback(os.close, fd)
        for fd in shared:
            its_own.append(os.dup(fd))
        self._outbox = arena.Outbox(shared[0]) if shared else None
        self._inbox = arena.Inbox(shared[1]) if shared else None
        self._log = shared[2] if shared else None  # of results

    def _greet(self) -> None:
        options = self._options
        self._send(wire.BEGIN, 0, *encode_setup(options.initializer, options.initargs, self._worker.keeps))

    def _orders(self) -> tuple[forkserver_client.Preloaded, dict[str, Any]]:
        options = self._options
        return self._preloaded(), {"start": options.start_method, "memory_limit": options.memory_limit}

    def _preloaded(self) -> forkserver_client.Preloaded:
        """The modules that the worker has from the start, and the script if a worker or the oldest request needs it."""
        options = self._options
        if isinstance(self._events, ShowsWaitingFunction) and is_of_main(self._events.waiting_function()):
            options.needs_main = True
        with_script = options.needs_main and options.start_method == "forkserver"
        return options.preload, main_module() if with_script else None

    def _listen(self) -> None:
        io_thread.watch(self._channel.sock.fileno(), self._heard)
        self._stdout.watch()
        self._stderr.watch()

    def _can_work(self) -> None:
        self._write(wire.CAPACITY, self._worker.capacity)

    # Work. From any thread.

    def _encode(self, request: Request) -> Encoded:
        fn, args, kwargs = request.fn, request.args, request.kwargs
        if request.ended:
            raise RequestCancelled
        return encode_call(fn, args, kwargs)

    def _call(self, number: int, encoded: Encoded) -> None:
        self._write(wire.CALL, number, *encoded)
        self._sent = number

    def _say_stop(self) -> None:
        self._send(wire.STOP, 0)

    def _say_cancel(self, number: int, first: bool, /) -> None:
        self._send(wire.CANCEL, number)
        if self._single:  # the signal comes after the frame, so the worker finds the frame
            if first:
                self._nudge()
            else:
                self.recall()

    def _ask_where(self) -> bool:
        self._signal(wire.DUMP)
        return True

    def _send(self, kind: int, id: int, data: bytes = b"", buffers: Any = (), needs_main: bool = False) -> None:
        with primitives.Uninterrupted():
            self._write(kind, id, data, buffers, needs_main)

    def _write(self, kind: int, id: int, data: bytes = b"", buffers: Any = (), needs_main: bool = False) -> None:
        """`_send` for callers that Ctrl-C cannot interrupt."""
        if needs_main and not self._has_main:
            self._has_main = self._options.needs_main = True
            self._channel.send(wire.pack(wire.MAIN, 0, wire.dumps(main_module())[0]))
        if self._lacks_authkey():
            self._has_authkey = True
            from bullpen.pools.runtimes.process import sharing

            self._channel.send(wire.pack(wire.AUTHKEY, 0, sharing.authkey()))
        if self._inbox is not None and self._inbox.freed:
            self._channel.send(wire.pack(wire.FREED, 0, self._inbox.take_freed()))
        self._channel.send(wire.pack_shared(kind, id, data, buffers, self._outbox))

    def _lacks_authkey(self) -> bool:
        """Whether the app may send proxies of a `multiprocessing` manager, to which the worker cannot connect yet."""
        return not self._has_authkey and "multiprocessing.process" in sys.modules

    def credit(self, number: int, count: int) -> None:
        if self._over:
            return
        self._send(wire.CREDIT, number, count.to_bytes(4, "little"))
        if not count and self._single:  # it reads no frames while it has credits left
            self._nudge()

    # Frames from the worker. On the io thread.

    def _heard(self) -> None:
        try:
            frames = self._channel.receive()
        except (EOFError, ConnectionError):  # the forkserver reports how the worker ended
            io_thread.forget(self._channel.sock.fileno())
            self._closed("channel")
            return
        except wire.NoFrame as error:
            self._misbehaved(error)
            return
        except Exception as error:  # there is no memory for a frame: the rest of the stream cannot be read
            io_thread.forget(self._channel.sock.fileno())
            self._cannot_go_on(error)
            return
        for frame in frames:
            self._take(frame)
        if self._streak >= STREAK and not self._over:
            self._prefetch()
        if self._channel.reader.has_half and not self._awaits_rest:
            self._look_for_rest(None, 0)

    def _look_for_rest(self, before: tuple[int, int] | None, looks: int) -> None:
        """A frame has arrived in part. If no more of it comes, the worker broke the protocol."""
        half = self._channel.reader.half()
        looks = looks + 1 if half == before else 0
        self._awaits_rest = half is not None and not (self._over or self._misbehaves)
        if looks == MOST_LOOKS:
            self._misbehaved(wire.NoFrame("it sent a part of a message and not the rest"))
        elif self._awaits_rest:
            io_thread.call_later(LOOK_EVERY, functools.partial(self._read_rest, half, looks))

    def _read_rest(self, before: tuple[int, int] | None, looks: int) -> None:
        if not (self._over or self._misbehaves):
            self._heard()  # it may have come while this thread was busy
            self._look_for_rest(before, looks)

    def _take(self, frame: wire.Frame) -> None:
        """Handle one frame. It never fails, because the frames after it concern other requests."""
        if self._misbehaves:
            return
        try:
            self._handle(*frame)
        except wire.NoFrame as error:
            self._misbehaved(error)
        except BaseException as error:
            kind, number = frame[0] & ~wire.SHARED, frame[1]
            if kind in ANSWERS and number in self._requests:
                self.finished(number, FAILED, unreadable("the result", error, ran=True))
            elif kind == wire.ITEM and number in self._streams:
                self._streams[number].came(functools.partial(raise_, error))
            else:
                logger.exception("a message of worker %s could not be handled", self._worker.name)
                if kind != wire.NEWS:  # only its value is the user's
                    self._cannot_go_on(error)

    def _misbehaved(self, error: wire.NoFrame) -> None:
        """It broke the protocol, so its channel cannot be read any further: that is a crash."""
        self._misbehaves = True
        io_thread.forget(self._channel.sock.fileno())
        self._punish(str(error))

    def _handle(self, kind: int, number: int, data: Any, buffers: tuple[Any, ...]) -> None:
        if kind & wire.SHARED:
            kind, number, data, buffers = wire.unpack_shared((kind, number, data, buffers), self._inbox)
        if kind == wire.FREED:
            assert self._outbox is not None
            self._outbox.freed(data)
            return
        if kind in OF_A_CALL and number not in self._requests:
            raise wire.NoFrame(f"it answers call {number}, which it does not have")
        self._streak = self._streak + 1 if kind == wire.QUICK else 0
        if kind in (wire.QUICK, wire.DONE):
            try:
                value = wire.loads(data, buffers)
                if type(value) is child.SentOutcomes:
                    value = _outcomes(value, wire.size(data, buffers))
            except BaseException as error:
                self.finished(number, FAILED, unreadable("the result", error, ran=True))
            else:
                self.finished(number, DONE, value)
        elif kind == wire.FAILED:
            self.finished(number, FAILED, _error(data))
        elif kind == wire.UNPICKLABLE:
            self._not_pickled(number, _main_reason(_error(data)))
        elif kind == wire.ITEM:
            stream = self._streams.get(number)
            if stream is None:
                raise wire.NoFrame(f"it sends an item of call {number}, which is no stream")
            stream.came(functools.partial(wire.loads, data, buffers))
        elif kind == wire.NEWS:
            self._tell_listeners(number, wire.loads(data, buffers))
        elif kind == wire.READY:
            if self._ready is not None:
                raise wire.NoFrame("it says twice that it is ready")
            self._is_ready(*wire.loads(data, buffers))
        elif kind == wire.NOT_BEGUN:
            if not self._recalls:
                raise wire.NoFrame("it gives back calls that were not recalled")
            self._take_back(wire.loads(data, ()))
        elif kind == wire.BROKEN:
            self._broke(number, self._exceeded(_main_reason(_error(data))))
        else:
            raise wire.NoFrame(f"it sent a message of the unknown kind {kind}")

    def _not_pickled(self, number: int, problem: BaseException) -> None:
        """The worker could not unpickle a call, or not pickle its result."""
        if not isinstance(problem, NotPicklable | MissingMainGuard):
            if self._send_each(number):
                return
            problem = unreadable("the call", problem, ran=False)
        self.finished(number, FAILED, problem)

    def _send_each(self, number: int) -> bool:
        """If that was a call of several items, none of which has run, send it again with each item in a pickle of its
        own. False if it was another call, or it was cancelled.
        """
        request = self._requests.get(number)
        if request is None or number in self._told or number in self._each:
            return False
        fn, args, kwargs = request.fn, request.args, request.kwargs
        if not isinstance(fn, CallsMany) or request.ended or len(args[0]) == 1:
            return False
        self._each = {number, *self._each.intersection(self._requests)}
        try:
            self._call(number, encode_each(fn, args, kwargs))
        except NotPicklable:
            return False
        return True

    def _exceeded(self, error: BaseException) -> BaseException:
        """`WorkerOutOfMemory` in place of a `MemoryError` under a memory limit."""
        limit = self._options.memory_limit
        if limit is None or not isinstance(error, MemoryError):
            return error
        message = f"worker {self._worker.name} (pid {self._pid}) wanted more memory than its limit of {limit} bytes"
        exceeded = WorkerOutOfMemory(message, worker=self._worker.name, limit=limit)
        exceeded.__cause__ = error
        return exceeded

    def _tell_listeners(self, number: int, value: Any) -> None:
        request = self._requests.get(number)
        for argument in () if request is None else request.args:
            if isinstance(argument, Listener):
                argument.hear(value)

    # Prefetched requests.

    def _prefetch(self) -> None:
        """Give a quick worker more requests, so that it does not wait for each one."""
        prefetcher = self._prefetcher
        room = MOST_PREFETCHED - len(self._requests)
        runs = next((self._ids.get(request) for request in self._worker.requests), None)
        if runs is None or runs > self._sent:  # it is idle, or another thread sends it its first request now
            return
        if prefetcher is None or room < MOST_PREFETCHED // 2 or self._recalls or self._streams or self._stopping:
            return
        pieces: list[Any] = []
        given = prefetcher.prefetch(self._worker, room)
        for place, request in enumerate(given):
            try:
                fn, args, kwargs = request.fn, request.args, request.kwargs
                if isinstance(fn, ProducesItems | CallsMany) or request.ended:
                    raise ValueError
                data, buffers, needs_main = encode_call(fn, args, kwargs)
                if buffers or len(data) > SMALL or (needs_main and not self._has_main) or self._lacks_authkey():
                    raise ValueError
            except BaseException:  # the pool hands it over again, alone; then it is sent, or fails with the reason
                self._streak = 0
                prefetcher.not_begun(self._worker, given[place:])
                break
            number = next(self._numbers)
            with self._lock:
                self._requests[number] = request
                self._ids[request] = number
            pieces += wire.pack(wire.CALL, number, data)
        if pieces:
            self._channel.send([b"".join(pieces)])
            self._sent = number
            if self._recalls:  # another thread recalled them before they were sent
                self.recall()
            if not self._watched:
                self._watched = True
                io_thread.call_later(PATIENCE, functools.partial(self._watch, self._answers))

    def _watch(self, answers: int) -> None:
        """Recall the prefetched requests if the worker has answered nothing since the last check."""
        self._watched = len(self._requests) > 1 and not self._over
        if not self._watched:
            return
        if self._answers == answers:
            self._streak = 0
            if self._nudged_early:
                self._nudged_early = False
                self._nudge()
            elif not self._recalls:
                self.recall()
        io_thread.call_later(PATIENCE, functools.partial(self._watch, self._answers))

    def recall(self) -> None:
        """Tell the worker to give back the requests that it has not begun."""
        with self._lock:
            self._recalls += 1
        self._send(wire.RECALL, 0)
        self._nudge()

    def _nudge(self) -> None:
        """Tell the worker by a signal to read its socket while a request runs."""
        if self._channel.waits:
            self._nudged_early = True
        self._signal(wire.NUDGE)

    def _take_back(self, numbers: list[int]) -> None:
        requests = []
        with self._lock:
            self._recalls -= 1
            for number in numbers:
                request = self._requests.pop(number, None)
                if request is not None:
                    del self._ids[request]
                    self._told.pop(number, None)
                    requests.append(request)
        if requests and self._prefetcher is not None:
            self._run(self._prefetcher.not_begun(self._worker, requests))

    # The end.

    def _describe_death(self, code: int | None, why: str) -> WorkerLost | WorkerStartFailed:
        limit = self._options.memory_limit
        if limit is not None and not self._worker.was_ready:  # too little memory may have kept it from reporting
            why = why or f"its memory_limit is {limit} bytes"
        return super()._describe_death(code, why)

    def _hear_the_rest(self) -> bool:
        if self._inbox is not None:
            self._begun = self._inbox.marks()
        for frame in self._channel.rest():
            self._take(frame)
        more = self._stdout.drain()
        return self._stderr.drain() or more

    def never_began(self, request: Request) -> bool:
        number = self._ids.get(request)
        return number is None or request in self._rests or not arena.has_begun(self._begun, number)

    def _rescue(self, death: BaseException) -> None:
        """Of a call of several items, only the one that ran is lost: those behind it run on another worker."""
        for number, request in list(self._requests.items()):
            fn, args = request.fn, request.args
            if not isinstance(fn, CallsMany) or not fn.logged or self._log is None:
                continue
            if request.ended or not arena.has_begun(self._begun, number):
                continue
            past = fn.past = Outcomes([], {}, 0.0) if fn.past is None else fn.past
            before = len(past.values)
            self._add_logged(past, arena.read_log(self._log, number), len(args[0]), death)
            done = len(past.values) - before
            if done == len(args[0]):
                self.finished(number, DONE, Outcomes([], {}, 0.0))
            else:
                self._rests.add(request)
                with request.lock:
                    if not request.ended:
                        request.args = tuple(column[done:] for column in args)

    def _add_logged(self, past: Outcomes, log: list[tuple[bytes, bool]], count: int, death: BaseException) -> None:
        """Add the outcomes of `count` items as far as this worker has logged them, and of the item that ran."""
        for data, failed in log:
            value = None
            try:
                if failed:
                    past.errors[len(past.values)] = _error(data)
                else:
                    value = wire.loads(data, ())
            except BaseException as error:
                past.errors[len(past.values)] = unreadable("the result", error, ran=True)
            past.values.append(value)
        if len(log) < count:
            past.lost[len(past.values)] = self._worker
            past.errors[len(past.values)] = death
            past.values.append(None)

    def _close(self) -> None:
        self._channel.close()
        if self._log is not None:
            os.close(self._log)
        if self._inbox is not None:
            self._inbox.close()
        if self._outbox is not None:
            self._outbox.close()
        self._stdout.close()
        self._stderr.close()


def _outcomes(sent: child.SentOutcomes, size: int) -> Outcomes:
    errors = {place: failures.rebuild(entries, RemoteError) for place, entries in sent.errors.items()}
    return Outcomes(sent.values, errors, sent.seconds, sent.size + size)


def _main_reason(error: BaseException) -> BaseException:
    """`MissingMainGuard`, if that is why the worker did not find a function; else the error itself."""
    return error.__cause__ if isinstance(error.__cause__, MissingMainGuard) else error


def _error(data: Any) -> BaseException:
    return failures.rebuild(wire.loads(data, ()), RemoteError)
