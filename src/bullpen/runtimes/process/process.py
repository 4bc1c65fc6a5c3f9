"""One worker process, from the app's side: what it is sent, and what it answers."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import socket
from typing import TYPE_CHECKING, Any

from bullpen import primitives
from bullpen.core.request import DONE, FAILED, Request
from bullpen.core.worker import Worker
from bullpen.errors import (
    MissingMainGuard,
    NotPicklable,
    RemoteError,
    WorkerLost,
    WorkerOutOfMemory,
    WorkerStartFailed,
)
from bullpen.runtimes.port import CallsMany, Listener, Outcomes, ProducesItems, WorkerEvents
from bullpen.runtimes.process import arena, child, failures, nursery, wire
from bullpen.runtimes.process.calls import RequestCancelled
from bullpen.runtimes.process.items import raise_
from bullpen.runtimes.process.listening import listen
from bullpen.runtimes.process.output import Output
from bullpen.runtimes.process.pickling import Encoded, encode_call, encode_each, encode_setup, is_of_main, main_module
from bullpen.runtimes.process.refusals import unreadable
from bullpen.runtimes.process.supervised import Supervised, pipe_from_it
from bullpen.runtimes.process.switchboard import Channel, switchboard

if TYPE_CHECKING:
    from bullpen.runtimes.process.runtime import ProcessRuntime

logger = logging.getLogger("bullpen")

ANSWERS = (wire.QUICK, wire.DONE, wire.FAILED, wire.REFUSED)
AHEAD = 32  # requests that a quick worker may have at once
STREAK = 4  # how many quick ones make a quick worker
SMALL = 16 * 1024  # bytes of a request that may be given ahead
PATIENCE = 0.02  # seconds after which a quick worker that does not answer is stuck


class Process(Supervised):
    """One worker process that runs Python functions."""

    __slots__ = (
        "_channel",
        "_each",
        "_has_main",
        "_hearing",
        "_inbox",
        "_memory_limit",
        "_nudged_early",
        "_outbox",
        "_recalls",
        "_runtime",
        "_sent",
        "_stdout",
        "_streak",
        "_watched",
    )

    def __init__(self, worker: Worker, events: WorkerEvents, runtime: ProcessRuntime) -> None:
        super().__init__(worker, events, runtime.cancel_grace, runtime.max_rss)
        self._runtime = runtime
        self._memory_limit = runtime.memory_limit
        self._sent = 0  # the number of the last request that was sent, and not only noted
        self._each: set[int] = set()  # calls for several items that were sent once more
        self._recalls = 0  # that were not answered yet: meanwhile it is given nothing ahead
        self._nudged_early = False  # the socket had no room yet for what it was to look at
        self._streak = 0  # how many of the last answers were quick
        self._watched = False  # somebody will look whether it gets on
        self._has_main = False
        self._hearing = primitives.gate()  # closed while somebody handles what it has said

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

    def _greet(self) -> None:
        runtime = self._runtime
        self._send(wire.BEGIN, 0, *encode_setup(runtime.initializer, runtime.initargs, self._worker.keeps))

    def _orders(self) -> tuple[nursery.Foundation, dict[str, Any]]:
        return self._foundation(), {"start": self._runtime.start_method, "memory_limit": self._memory_limit}

    def _foundation(self) -> nursery.Foundation:
        """What it has from the beginning: also the script, if that is needed, or will be for what waits longest."""
        runtime = self._runtime
        waiting = getattr(self._events, "waiting_function", None)  # not every pool has it
        if waiting is not None and is_of_main(waiting()):
            runtime.needs_main = True
        with_script = runtime.needs_main and runtime.start_method == "zygote"
        return runtime.preload, main_module() if with_script else None

    def _listen(self) -> None:
        switchboard.watch(self._channel.sock.fileno(), self._heard)
        self._stdout.watch()
        self._stderr.watch()

    def _can_work(self) -> None:
        self._send(wire.CAPACITY, self._worker.capacity)

    # Work. From any thread.

    def _encode(self, request: Request) -> Encoded:
        fn, args, kwargs = request.fn, request.args, request.kwargs
        if request.ended:
            raise RequestCancelled
        return encode_call(fn, args, kwargs)

    def _call(self, number: int, encoded: Encoded) -> None:
        self._send(wire.CALL, number, *encoded)
        self._sent = number

    def _say_stop(self) -> None:
        self._send(wire.STOP, 0)

    def _say_cancel(self, number: int, first: bool, /) -> None:
        self._send(wire.CANCEL, number)
        if self._worker.capacity == 1:  # a signal comes after what it says: it looks at that when it gets it
            if first:
                self._nudge()
            else:
                self.recall()

    def _ask_where(self) -> None:
        self._signal(wire.DUMP)

    def _send(self, kind: int, id: int, data: bytes = b"", buffers: Any = (), needs_main: bool = False) -> None:
        if needs_main and not self._has_main:
            self._has_main = self._runtime.needs_main = True
            self._channel.send(wire.pack(wire.MAIN, 0, wire.dumps(main_module())[0]))
        if self._inbox is not None and self._inbox.has_freed:
            self._channel.send(wire.pack(wire.FREED, 0, self._inbox.take_freed()))
        self._channel.send(wire.pack_shared(kind, id, data, buffers, self._outbox))

    def credit(self, number: int, count: int) -> None:
        self._send(wire.CREDIT, number, count.to_bytes(4, "little"))
        if not count and self._worker.capacity == 1:  # it may have credits left, and reads nothing before they are used
            self._nudge()

    def listen_for(self, request: Request) -> None:
        """The calling thread is going to wait for `request`: it listens itself, if there is nothing else to hear."""
        alone = len(self._requests) == 1 and request in self._ids and not self._streams
        if alone and self._worker.capacity == 1 and not switchboard.reports_here():
            listen(self._channel.sock.fileno(), self._hear, request)

    # What it says. On the switchboard's thread, or on one that listens instead.

    def _heard(self) -> None:
        with self._hearing:
            goes_on = self._handle_frames()
            if goes_on and self._streak >= STREAK and not self._over:
                self._give_ahead()  # whoever listens does not begin with that before it is noted here
        if not goes_on:
            switchboard.forget(self._channel.sock.fileno())  # its keeper will say what has happened

    def _hear(self) -> bool:
        with self._hearing:
            return self._handle_frames()

    def _handle_frames(self) -> bool:
        """Handle what it has said; False if it will say no more."""
        try:
            frames = self._channel.receive()
        except (EOFError, ConnectionError):
            return False
        except Exception as error:  # no memory: nobody knows what comes next
            self._cannot_go_on(error)
            return False
        for frame in frames:
            self._take(frame)
        return True

    def _take(self, frame: wire.Frame) -> None:
        """Handle one thing that it has said. Never fails: what comes after it concerns others."""
        try:
            self._handle(*frame)
        except BaseException as error:
            kind, number = frame[0] & ~wire.SHARED, frame[1]
            if kind in ANSWERS and number in self._requests:
                self.finished(number, FAILED, unreadable("the result", error, ran=True))
            elif kind == wire.ITEM and number in self._streams:
                self._streams[number].came(functools.partial(raise_, error))
            else:
                logger.exception("what worker %s has said could not be handled", self._worker.name)
                if kind in (wire.READY, wire.NOT_BEGUN, wire.BROKEN):
                    self._cannot_go_on(error)

    def _handle(self, kind: int, number: int, data: Any, buffers: tuple[Any, ...]) -> None:
        if kind & wire.SHARED:
            kind, number, data, buffers = wire.unpack_shared((kind, number, data, buffers), self._inbox)
        if kind == wire.FREED:
            assert self._outbox is not None
            self._outbox.freed(data)
            return
        self._streak = self._streak + 1 if kind == wire.QUICK else 0
        if kind in (wire.QUICK, wire.DONE):
            try:
                value = wire.loads(data, buffers)
                if type(value) is child.Outcomes:
                    value = _outcomes(value, wire.size(data, buffers))
            except BaseException as error:
                self.finished(number, FAILED, unreadable("the result", error, ran=True))
            else:
                self.finished(number, DONE, value)
        elif kind == wire.FAILED:
            self.finished(number, FAILED, _error(data))
        elif kind == wire.REFUSED:
            self._refused(number, _main_reason(_error(data)))
        elif kind == wire.ITEM:
            stream = self._streams.get(number)
            if stream is not None:
                stream.came(functools.partial(wire.loads, data, buffers))
        elif kind == wire.NEWS:
            self._tell_listeners(number, wire.loads(data, buffers))
        elif kind == wire.READY:
            self._is_ready(*wire.loads(data, buffers))
        elif kind == wire.NOT_BEGUN:
            self._take_back(wire.loads(data, ()))
        elif kind == wire.BROKEN:
            self._broke(number, self._exceeded(_main_reason(_error(data))))

    def _refused(self, number: int, problem: BaseException) -> None:
        """It could not read a call, or not send its result."""
        if not isinstance(problem, NotPicklable | MissingMainGuard):
            if self._send_each(number):
                return
            problem = unreadable("the call", problem, ran=False)
        self.finished(number, FAILED, problem)

    def _send_each(self, number: int) -> bool:
        """If that was a call for several items, none of which has run, send them once more, so that each is read on its
        own. False if it was not, or nobody wants it any more.
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
        """What is said of it if it had not enough memory."""
        if self._memory_limit is None or not isinstance(error, MemoryError):
            return error
        name = f"worker {self._worker.name} (pid {self._pid})"
        message = f"{name} wanted more memory than its limit of {self._memory_limit} bytes"
        exceeded = WorkerOutOfMemory(message, worker=self._worker.name, limit=self._memory_limit)
        exceeded.__cause__ = error
        return exceeded

    def _tell_listeners(self, number: int, value: Any) -> None:
        request = self._requests.get(number)
        for argument in () if request is None else request.args:
            if isinstance(argument, Listener):
                argument.hear(value)

    # Requests that it is given before it can begin them.

    def _give_ahead(self) -> None:
        """It gets through requests quickly: let it have some more, so that it need not wait for each."""
        ask = getattr(self._events, "ahead", None)  # not every pool has any
        room = AHEAD - len(self._requests)
        runs = next((self._ids.get(request) for request in self._worker.requests), None)
        if runs is None or runs > self._sent:  # it waits, or is just being sent something, which has to come first
            return
        if ask is None or room < AHEAD // 2 or self._recalls or self._streams or self._stopping:
            return
        pieces: list[Any] = []
        given: list[Request] = ask(self._worker, room)
        for place, request in enumerate(given):
            try:
                fn, args, kwargs = request.fn, request.args, request.kwargs
                if isinstance(fn, ProducesItems | CallsMany) or request.ended:
                    raise ValueError
                data, buffers, needs_main = encode_call(fn, args, kwargs)
                if buffers or len(data) > SMALL or (needs_main and not self._has_main):
                    raise ValueError
            except BaseException:  # it comes again, alone, and is sent, or told what is wrong with it
                self._streak = 0
                self._events.not_begun(self._worker, given[place:])  # type: ignore[attr-defined]
                break
            number = next(self._numbers)
            with self._lock:
                self._requests[number] = request
                self._ids[request] = number
            pieces += wire.pack(wire.CALL, number, data)
        if pieces:
            self._channel.send([b"".join(pieces)])
            self._sent = number
            if self._recalls:  # somebody wanted back what was not even sent
                self.recall()
            if not self._watched:
                self._watched = True
                switchboard.later(PATIENCE, functools.partial(self._watch, self._answers))

    def _watch(self, answers: int) -> None:
        """If it is stuck with a request, it gives back what it has not begun."""
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
        switchboard.later(PATIENCE, functools.partial(self._watch, self._answers))

    def recall(self) -> None:
        """Have it give back what it has not begun."""
        with self._lock:
            self._recalls += 1
        self._send(wire.RECALL, 0)
        self._nudge()

    def _nudge(self) -> None:
        """Have it look at what has come, while it runs something."""
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
        if not requests:
            return
        self._run(self._events.not_begun(self._worker, requests))  # type: ignore[attr-defined]

    # The end.

    def _obituary(self, code: int | None, why: str) -> WorkerLost | WorkerStartFailed:
        if self._memory_limit is not None and not self._worker.was_ready:  # it may have had no room even to say so
            why = why or f"its memory_limit is {self._memory_limit} bytes"
        return super()._obituary(code, why)

    def _hear_the_rest(self) -> None:
        with self._hearing:
            for frame in self._channel.rest():
                self._take(frame)
        self._stdout.drain()
        self._stderr.drain()

    def _close(self) -> None:
        with self._hearing:  # nobody is about to map what has come
            self._channel.close()
            if self._inbox is not None:
                self._inbox.close()
        if self._outbox is not None:
            self._outbox.close()
        self._stdout.close()
        self._stderr.close()


def _outcomes(sent: child.Outcomes, size: int) -> Outcomes:
    errors = {place: failures.rebuild(entries, RemoteError) for place, entries in sent.errors.items()}
    return Outcomes(sent.values, errors, sent.seconds, sent.size + size)


def _main_reason(error: BaseException) -> BaseException:
    """What is to be said first: if a function was not found because of that, that the script has no main guard."""
    return error.__cause__ if isinstance(error.__cause__, MissingMainGuard) else error


def _error(data: Any) -> BaseException:
    return failures.rebuild(wire.loads(data, ()), RemoteError)
