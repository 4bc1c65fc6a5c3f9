"""One worker process, from the app's side: what it is sent, and what it answers."""

from __future__ import annotations

import functools
import os
import socket
from typing import Any

from bullpen.core.request import DONE, FAILED, Request
from bullpen.core.worker import Worker
from bullpen.errors import MissingMainGuard, NotPicklable, RemoteError, WorkerOutOfMemory
from bullpen.runtimes.port import CallsMany, Listener, Outcomes, ProducesItems, WorkerEvents
from bullpen.runtimes.process import arena, child, failures, nursery, wire
from bullpen.runtimes.process.calls import RequestCancelled
from bullpen.runtimes.process.items import unreadable
from bullpen.runtimes.process.output import Output
from bullpen.runtimes.process.pickling import Encoded, encode_call, main_module
from bullpen.runtimes.process.supervised import Supervised
from bullpen.runtimes.process.switchboard import Channel, switchboard

AHEAD = 32  # requests that a quick worker may have at once
STREAK = 4  # how many quick ones make a quick worker
SMALL = 16 * 1024  # bytes of a request that may be given ahead
PATIENCE = 0.02  # seconds after which a quick worker that does not answer is stuck


class Process(Supervised):
    """One worker process that runs Python functions."""

    __slots__ = (
        "_channel",
        "_has_main",
        "_inbox",
        "_memory_limit",
        "_outbox",
        "_recalls",
        "_sent",
        "_shared",
        "_stdout",
        "_streak",
        "_watched",
    )

    def __init__(
        self,
        worker: Worker,
        events: WorkerEvents,
        cancel_grace: float,
        max_rss: int | None = None,
        memory_limit: int | None = None,
    ) -> None:
        super().__init__(worker, events, cancel_grace, max_rss)
        self._memory_limit = memory_limit
        self._sent = 0  # the number of the last request that was sent, and not only noted
        self._recalls = 0  # that were not answered yet: meanwhile it is given nothing ahead
        self._streak = 0  # how many of the last answers were quick
        self._watched = False  # somebody will look whether it gets on
        self._has_main = False

    # Start.

    def start(self, setup: Encoded, preload: tuple[str, ...], how: str) -> None:
        """Have it started, to do first what `setup` says."""
        data, buffers, needs_main = setup
        mine, theirs = socket.socketpair()
        out, its_out = os.pipe()
        err, its_err = os.pipe()
        self._channel = Channel(mine)
        self._shared = arena.new_files()
        self._outbox = arena.Outbox(self._shared[0]) if self._shared else None
        self._inbox = arena.Inbox(self._shared[1]) if self._shared else None
        self._stdout = Output(out, self._worker.name, "stdout")
        self._stderr = Output(err, self._worker.name, "stderr")
        self._send(wire.BEGIN, 0, data, buffers, needs_main)
        switchboard.post(self._listen)
        try:
            wanted = {"start": how, "memory_limit": self._memory_limit}
            nursery.start(preload, self, wanted, [theirs.detach(), its_out, its_err, *map(os.dup, self._shared)])
        except BaseException:
            switchboard.post(self._close)
            raise

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
                self._signal(wire.NUDGE)
            else:
                self._recall()

    def _ask_where(self) -> None:
        self._signal(wire.DUMP)

    def _send(self, kind: int, id: int, data: bytes = b"", buffers: Any = (), needs_main: bool = False) -> None:
        if needs_main and not self._has_main:
            self._has_main = True
            self._channel.send(wire.pack(wire.MAIN, 0, wire.dumps(main_module())[0]))
        if self._inbox is not None and self._inbox.has_freed:
            self._channel.send(wire.pack(wire.FREED, 0, self._inbox.take_freed()))
        self._channel.send(wire.pack_shared(kind, id, data, buffers, self._outbox))

    def credit(self, number: int, count: int) -> None:
        self._send(wire.CREDIT, number, count.to_bytes(4, "little"))

    # What it says. On the switchboard's thread.

    def _heard(self) -> None:
        try:
            frames = self._channel.receive()
        except (EOFError, OSError):
            switchboard.forget(self._channel.sock.fileno())  # its keeper will say what has happened
            return
        for frame in frames:
            self._handle(*frame)
        if self._streak >= STREAK and not self._over:
            self._give_ahead()

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
                    value = _outcomes(value)
            except BaseException as error:
                self.finished(number, FAILED, unreadable("the result", error))
            else:
                self.finished(number, DONE, value)
        elif kind == wire.FAILED:
            self.finished(number, FAILED, _error(data))
        elif kind == wire.REFUSED:
            problem = _error(data)
            if isinstance(problem.__cause__, MissingMainGuard):  # the function is missing because of that
                problem = problem.__cause__
            elif not isinstance(problem, NotPicklable):
                problem = unreadable("the call", problem)
            self.finished(number, FAILED, problem)
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
            self._broke(number, self._exceeded(_error(data)))

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
            if not self._watched:
                self._watched = True
                switchboard.later(PATIENCE, functools.partial(self._watch, self._answers))

    def _watch(self, answers: int) -> None:
        """If it is stuck with a request, it gives back what it has not begun."""
        self._watched = len(self._requests) > 1 and not self._over
        if not self._watched:
            return
        if self._answers == answers and not self._recalls:
            self._streak = 0
            self._recall()
        switchboard.later(PATIENCE, functools.partial(self._watch, self._answers))

    def _recall(self) -> None:
        with self._lock:
            self._recalls += 1
        self._send(wire.RECALL, 0)
        self._signal(wire.NUDGE)

    def _take_back(self, numbers: list[int]) -> None:
        requests = []
        with self._lock:
            self._recalls -= 1
            for number in numbers:
                request = self._requests.pop(number, None)
                if request is not None:
                    del self._ids[request]
                    self._told.discard(number)
                    requests.append(request)
        if not requests:
            return
        turn = requests[0] if requests[0] in self._worker.requests else None  # it had just come to this one
        self._events.not_begun(self._worker, requests)  # type: ignore[attr-defined]
        self._run(turn)

    # The end.

    def _hear_the_rest(self) -> None:
        try:
            while True:
                frames = self._channel.receive()
                if not frames:
                    break
                for frame in frames:
                    self._handle(*frame)
        except (EOFError, OSError):
            pass
        self._stdout.drain()
        self._stderr.drain()

    def _close(self) -> None:
        self._channel.close()
        self._stdout.close()
        self._stderr.close()
        for fd in self._shared:
            os.close(fd)
        self._shared = []
        self._outbox = self._inbox = None


def _outcomes(sent: child.Outcomes) -> Outcomes:
    errors = {place: failures.rebuild(entries, RemoteError) for place, entries in sent.errors.items()}
    return Outcomes(sent.values, errors, sent.seconds)


def _error(data: Any) -> BaseException:
    return failures.rebuild(wire.loads(data, ()), RemoteError)
