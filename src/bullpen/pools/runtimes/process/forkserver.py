"""The forkserver: a process with one thread that starts the workers, reaps them, and ends with the app.

It imports the modules of `preload` once, and the app's script if a function of that is called, and forks workers that
have them. For `start="spawn"` it starts fresh interpreters instead. It forks one spare process in advance, which
becomes the next worker. As the parent it learns first that a worker has ended; then it kills the rest of the worker's
process group and tells the app. When the app has ended, for whatever reason, it kills all workers and everything that
they have started: as a *subreaper* it becomes the parent of processes whose own parents have ended. It also kills what
an earlier app has left, whose forkserver was killed together with it.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import struct
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from typing import NoReturn

from bullpen.pools.runtimes.process import bootstrap, child, orphans, wire

PR_SET_CHILD_SUBREAPER = 36
SPARE_WHEN_IDLE = 0.005  # seconds without an event, before it forks a spare process
SWEEP_WHEN_IDLE = 0.1  # seconds without an event, before it looks for orphans
SWEEP_AFTER = 1.0  # seconds after which it looks for orphans in any case


def main() -> None:
    """The forkserver as a program. Its arguments are a path, two file descriptors and modules; and, if it imports the
    app's script, the name or the file of that, and the app's own arguments.
    """
    child.of_an_app = True
    _open_streams()
    _, _, control, death, preload, *script = sys.argv
    child.keep_to_itself(int(control), int(death))
    Forkserver(socket.socket(fileno=int(control)), int(death)).live(preload.split(), script)


def _open_streams() -> None:
    """The app may have no standard streams. Then descriptors of workers must not get their numbers."""
    for fd in range(3):
        try:
            os.fstat(fd)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # the lowest free number is this one


class Forkserver:
    """Starts workers when the app orders them."""

    def __init__(self, control: socket.socket, death: int) -> None:
        self._control = control
        self._death = death  # the read end of a pipe that is never written to; for workers
        self._workers: dict[int, int] = {}  # their numbers, by pid
        self._spare: bootstrap.SpareProcess | None = None
        self._wants_spare = False
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)

    def live(self, preload: list[str], script: list[str]) -> NoReturn:
        try:
            self._set_signals()
            _adopt_orphans()
            with child.dying_with_the_app(self._death):  # later it outlives the app for a moment, to kill all others
                if not _import(preload, script):
                    self._start_again(without=script)
            self._set_signals()  # an imported module may have set its own
            gc.collect()
            gc.freeze()  # workers share these pages until one of them writes: collections skip them
            self._serve()
        except (EOFError, ConnectionError):
            pass
        except BaseException:
            self._tell(wire.START_FAILED, 0, traceback.format_exc().encode())
        finally:
            self._end()

    def _start_again(self, without: list[str]) -> NoReturn:
        """Become the same program without the app's script."""
        for fd in (self._control.fileno(), self._death):
            os.set_inheritable(fd, True)
        os.execv(sys.executable, sys.orig_argv[: -len(without)])

    def _set_signals(self) -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, ())  # the app may block signals: workers need them
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the app decides when it ends
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wake, warn_on_full_buffer=False)

    def _serve(self) -> None:
        poll = select.poll()
        poll.register(self._control, select.POLLIN)
        poll.register(self._woken, select.POLLIN)
        begun = time.monotonic()
        swept = False
        while True:
            if self._wants_spare and not poll.poll(SPARE_WHEN_IDLE * 1000):
                self._fork_spare()
            ready = poll.poll(None if swept else SWEEP_WHEN_IDLE * 1000)
            if not swept and (not ready or time.monotonic() > begun + SWEEP_AFTER):
                orphans.sweep()
                swept = True
            for fd, _ in ready:
                if fd == self._woken:
                    with contextlib.suppress(BlockingIOError):
                        os.read(self._woken, 4096)
                    self._reap()
                else:
                    self._handle_order()

    # Start.

    def _handle_order(self) -> None:
        """Read one order: start a worker."""
        header, fds, _, _ = socket.recv_fds(self._control, wire.HEADER.size, bootstrap.MOST_FDS)
        child.keep_to_itself(*fds)
        if not header:
            raise EOFError
        header += self._exactly(wire.HEADER.size - len(header))
        _, _, _, number, length = wire.HEADER.unpack(header)
        orders = self._exactly(length)
        try:
            pid = self._start(orders, fds)
        except OSError as error:
            self._tell(wire.START_FAILED, number, str(error).encode())
            return
        finally:
            for fd in fds:
                os.close(fd)
        self._workers[pid] = number
        self._wants_spare = True
        pidfds = []
        if hasattr(os, "pidfd_open"):
            with contextlib.suppress(OSError):
                pidfds.append(os.pidfd_open(pid))
        with contextlib.suppress(OSError):
            message = wire.pack(wire.STARTED, number, pid.to_bytes(8, "little"))
            socket.send_fds(self._control, message, pidfds)
        for fd in pidfds:
            os.close(fd)

    def _exactly(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            more = self._control.recv(count - len(data))
            if not more:
                raise EOFError
            data += more
        return data

    def _start(self, orders: bytes, fds: list[int]) -> int:
        """Make the spare process a worker, or fork one; its pid."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.take(orders, fds):
            return spare.pid
        return self._fork(lambda alive: bootstrap.become_worker(orders, fds, alive, self._death))

    def _fork_spare(self) -> None:
        """Fork a process that waits for the orders of the next worker."""
        self._wants_spare = False
        with contextlib.suppress(OSError):  # it tries again after the next start
            ours, its = socket.socketpair()
            with its:
                pid = self._fork(lambda alive: bootstrap.wait_for_orders(its, alive, self._death), ours)
            self._spare = bootstrap.SpareProcess(pid, ours)

    def _fork(self, life: Callable[[int], None], *others: socket.socket) -> int:
        """Fork a process that runs `life`. Its argument is the descriptor that has it killed with the app. The process
        has none of the forkserver's own sockets, nor the `others`.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # preloaded modules may have threads: their risk
            pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):  # both processes do it, because either may be first
                os.setpgid(pid, pid)
            return pid
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for own in (self._woken, self._wake):
                os.close(own)
            for sock in (self._control, *others):
                sock.close()
            alive = child.die_with_the_app(self._death)
            child.prepare()
            life(alive)
        except BaseException:
            with contextlib.suppress(BaseException):
                os.write(2, traceback.format_exc().encode())
        finally:
            os._exit(1)

    # End.

    def _reap(self) -> None:
        """Reap workers that have ended, kill the rest of their groups, and tell the app."""
        while True:
            try:
                if hasattr(os, "waitid"):
                    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    if ended is None:
                        return
                    self._end_group(ended.si_pid)  # while the pid is still its own
                    pid, status, usage = os.wait4(ended.si_pid, 0)
                else:  # macOS with an older Python; untested
                    pid, status, usage = os.wait4(-1, os.WNOHANG)
                    if not pid:
                        return
                    self._end_group(pid)
            except ChildProcessError:
                return
            self._forget_spare(pid)
            number = self._workers.pop(pid, None)
            if number is not None:
                code = os.waitstatus_to_exitcode(status)
                memory = usage.ru_maxrss * (1 if sys.platform == "darwin" else 1024)
                self._tell(wire.EXITED, number, struct.pack("<qQ", code, memory))

    def _forget_spare(self, pid: int) -> None:
        """The spare process has ended, if this is its pid. From now on another process may get that pid."""
        if self._spare is not None and self._spare.pid == pid:
            self._spare.close()
            self._spare = None

    def _end_group(self, pid: int) -> None:
        if pid in self._workers:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def _tell(self, kind: int, number: int, data: bytes) -> None:
        with contextlib.suppress(OSError):  # if the app has ended, `_serve` notices it
            self._control.sendall(b"".join(wire.pack(kind, number, data)))

    def _end(self) -> NoReturn:
        """Kill all descendants, until there are none."""
        try:
            while True:
                for pid in (*self._workers, *(() if self._spare is None else (self._spare.pid,))):
                    with contextlib.suppress(OSError):
                        os.killpg(pid, signal.SIGKILL)
                for pid in _children():
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                pid, _ = os.waitpid(-1, 0)
                self._workers.pop(pid, None)
                self._forget_spare(pid)
        except ChildProcessError:
            pass
        finally:
            os._exit(0)


def _import(preload: list[str], script: list[str]) -> bool:
    """Import what workers have from the start. False if this process may not fork them after that."""
    pid = os.getpid()
    try:
        for name in preload:
            importlib.import_module(name)
        return not script or _import_script(*script)
    finally:
        if os.getpid() != pid:
            os._exit(0)  # a module has forked this process, which must not become a second forkserver


def _import_script(name: str, path: str, *argv: str) -> bool:
    """Import the app's script, so that every worker has it from the start.

    False if that fails, or if it has started threads, which a fork would lose. Then each worker imports it, and reports
    its error.
    """
    try:
        sys.argv[:] = argv
        child.import_main(name or None, path or None)
        alone = len(sys._current_frames()) == 1  # noqa: SLF001 — also threads that `threading` does not know
    except BaseException:
        alone = False
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(Exception):
            stream.flush()
    return alone


def _adopt_orphans() -> None:
    """Become the parent of descendants whose own parents end."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> list[int]:
    """The pids of the children of this process, if the system lists them."""
    try:
        return [int(pid) for pid in orphans.read(f"/proc/self/task/{os.getpid()}/children").split()]
    except OSError:  # a kernel without this file, or no Linux
        return []
