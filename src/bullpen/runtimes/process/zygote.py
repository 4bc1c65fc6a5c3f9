"""The keeper of workers: a process of one thread that starts them, buries them, and survives nobody.

It imports the modules of `preload` once, and the app's script if its functions are called, and forks workers that have
them; or, for `start="spawn"`, starts fresh interpreters. One process is forked ahead, to be the next worker at once.
It knows of each worker's end first, and then ends whatever the worker has left in its process group. When the app is
gone, however that came, it kills all workers and everything that they have started: as a *subreaper* it inherits those
whose own parents died. What an earlier app has left, because its keeper was killed with it, is swept.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from bullpen.runtimes.process import birth, child, orphans, wire

PR_SET_CHILD_SUBREAPER = 36
SPARE_WHEN_IDLE = 0.005  # seconds without anything to do, before it forks the next worker ahead
SWEEP_WHEN_IDLE = 0.1  # seconds without anything to do, before it looks for what others have left
SWEEP_AFTER = 1.0  # seconds, however much there is to do


def main() -> None:
    """The keeper as a program: the arguments are a path, the numbers of two file descriptors, modules, and, if it shall
    have the app's script, the name or the file of that, and the app's own arguments.
    """
    child.of_an_app = True
    _, _, control, death, preload, *script = sys.argv
    Zygote(socket.socket(fileno=int(control)), int(death)).live(preload.split(), script)


class Zygote:
    """Starts workers when the app says so."""

    def __init__(self, control: socket.socket, death: int) -> None:
        self._control = control
        self._death = death  # the read end of a pipe that nobody writes to; for workers
        self._workers: dict[int, int] = {}  # their numbers, by pid
        self._spare: birth.Spare | None = None
        self._wants_spare = False
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)

    def live(self, preload: list[str], script: list[str]) -> NoReturn:
        try:
            self._set_signals()
            _adopt_orphans()
            with child.dying_with_the_app(self._death):  # later it has to outlive the app, to end all others
                for name in preload:
                    importlib.import_module(name)
                if script:
                    _import_script(*script)
            self._set_signals()  # what was imported may have its own
            gc.collect()
            gc.freeze()  # forked workers share what is there, as long as nobody visits it
            self._serve()
        except (EOFError, ConnectionError):
            pass
        except BaseException:
            self._tell(wire.UNBORN, 0, traceback.format_exc().encode())
        finally:
            self._end()

    def _set_signals(self) -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)
        signal.signal(signal.SIGTERM, signal.SIG_IGN)  # the app decides when it is over
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
                    self._bury()
                else:
                    self._obey()

    # Start.

    def _obey(self) -> None:
        """Read one order: start a worker."""
        header, fds, _, _ = socket.recv_fds(self._control, wire.HEADER.size, birth.MOST_FDS)
        if not header:
            raise EOFError
        header += self._exactly(wire.HEADER.size - len(header))
        _, _, number, length = wire.HEADER.unpack(header)
        orders = self._exactly(length)
        try:
            pid = self._start(orders, fds)
        except OSError as error:
            self._tell(wire.UNBORN, number, str(error).encode())
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
        """A worker, which was forked already or is now; its pid."""
        spare, self._spare = self._spare, None
        if spare is not None and spare.take(orders, fds):
            return spare.pid
        return self._fork(lambda alive: birth.become(orders, fds, alive, self._death))

    def _fork_spare(self) -> None:
        """Have a process that can become a worker without being forked first."""
        self._wants_spare = False
        with contextlib.suppress(OSError):  # there will be another opportunity
            ours, its = socket.socketpair()
            with its:
                pid = self._fork(lambda alive: birth.wait_for_orders(its, alive, self._death), ours)
            self._spare = birth.Spare(pid, ours)

    def _fork(self, life: Callable[[int], None], *others: socket.socket) -> int:
        """Fork a process that leads this `life`. It gets what has it killed with the app, and has none of the keeper's
        own sockets, nor these `others`.
        """
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)  # preloaded modules may have threads: their risk
            pid = os.fork()
        if pid:
            with contextlib.suppress(OSError):  # both sides do it, so that it is done whoever comes first
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

    def _bury(self) -> None:
        """Tell of workers that have ended, and end what they have left in their groups."""
        while True:
            try:
                if hasattr(os, "waitid"):
                    ended = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
                    if ended is None:
                        return
                    self._end_group(ended.si_pid)  # while its number is still its own
                    pid, status = os.waitpid(ended.si_pid, 0)
                else:  # macOS with an older Python; untested
                    pid, status = os.waitpid(-1, os.WNOHANG)
                    if not pid:
                        return
                    self._end_group(pid)
            except ChildProcessError:
                return
            self._forget_spare(pid)
            number = self._workers.pop(pid, None)
            if number is not None:
                code = os.waitstatus_to_exitcode(status)
                self._tell(wire.EXITED, number, code.to_bytes(8, "little", signed=True))

    def _forget_spare(self, pid: int) -> None:
        """If that is who has ended: its number may be another's from now on."""
        if self._spare is not None and self._spare.pid == pid:
            self._spare.close()
            self._spare = None

    def _end_group(self, pid: int) -> None:
        if pid in self._workers:
            with contextlib.suppress(OSError):
                os.killpg(pid, signal.SIGKILL)

    def _tell(self, kind: int, number: int, data: bytes) -> None:
        with contextlib.suppress(OSError):  # if the app is gone, that is noticed elsewhere
            self._control.sendall(b"".join(wire.pack(kind, number, data)))

    def _end(self) -> NoReturn:
        """Leave nothing behind: not the workers, nor what they have started, nor what that has started."""
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


def _import_script(name: str, path: str, *argv: str) -> None:
    """Import the app's script, so that every worker has it from the beginning.

    If that cannot be done, or leaves threads, which a fork would cut off, this process begins again without it: then
    each worker imports it, and says what is wrong with it.
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
    if not alone:
        os.execv(sys.executable, sys.orig_argv[: -2 - len(argv)])


def _adopt_orphans() -> None:
    """Become the parent of descendants whose own parents die."""
    if sys.platform == "linux":
        import ctypes

        ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def _children() -> list[int]:
    """The children of this process, as far as the system tells."""
    try:
        return [int(pid) for pid in Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()]
    except OSError:  # a kernel without this file, or no Linux
        return []
