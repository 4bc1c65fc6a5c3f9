"""The keeper of workers: a process of one thread that starts them, buries them, and survives nobody.

It imports the modules of `preload` once, and the app's script if its functions are called, and forks workers that have
them; or, for `start="spawn"`, starts fresh interpreters. It knows of each worker's end first, and then ends whatever
the worker has left in its process group. When the app is gone, however that came, it kills all workers and everything
that they have started: as a *subreaper* it inherits those whose own parents died. What an earlier app has left, because
its keeper was killed with it, is swept.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import os
import pickle
import select
import signal
import socket
import sys
import time
import traceback
import warnings
from pathlib import Path
from typing import Any, NoReturn

from bullpen.runtimes.process import child, orphans, wire

PR_SET_CHILD_SUBREAPER = 36
MOST_FDS = 5  # that come with an order
SWEEP_WHEN_IDLE = 0.1  # seconds without anything to do, before it looks for what others have left
SWEEP_AFTER = 1.0  # seconds, however much there is to do
BOOT = (
    "import sys; sys.path[:] = sys.argv[1].split(chr(10)); "
    "from bullpen.runtimes.process.{0} import main; main()"  # by name: nothing of it shall be called `__main__`
)


def main() -> None:
    """The keeper as a program: the arguments are a path, the numbers of two file descriptors, modules, and, if it shall
    have the app's script, the name or the file of that, and the app's own arguments.
    """
    _, _, control, death, preload, *script = sys.argv
    Zygote(socket.socket(fileno=int(control)), int(death)).live(preload.split(), script)


class Zygote:
    """Starts workers when the app says so."""

    def __init__(self, control: socket.socket, death: int) -> None:
        self._control = control
        self._death = death  # the read end of a pipe that nobody writes to; for workers
        self._workers: dict[int, int] = {}  # their numbers, by pid
        self._woken, self._wake = os.pipe()
        for end in (self._woken, self._wake):
            os.set_blocking(end, False)

    def live(self, preload: list[str], script: list[str]) -> NoReturn:
        try:
            self._set_signals()
            _adopt_orphans()
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
        header, fds, _, _ = socket.recv_fds(self._control, wire.HEADER.size, MOST_FDS)
        if not header:
            raise EOFError
        header += self._exactly(wire.HEADER.size - len(header))
        _, _, number, length = wire.HEADER.unpack(header)
        orders = pickle.loads(self._exactly(length))
        try:
            pid = self._fork(orders, fds)
        except OSError as error:
            self._tell(wire.UNBORN, number, str(error).encode())
            return
        finally:
            for fd in fds:
                os.close(fd)
        self._workers[pid] = number
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

    def _fork(self, orders: dict[str, Any], fds: list[int]) -> int:
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
            self._control.close()
            _become(orders, fds, self._death)
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
            number = self._workers.pop(pid, None)
            if number is not None:
                code = os.waitstatus_to_exitcode(status)
                self._tell(wire.EXITED, number, code.to_bytes(8, "little", signed=True))

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
                for pid in self._workers:
                    with contextlib.suppress(OSError):
                        os.killpg(pid, signal.SIGKILL)
                for pid in _children():
                    with contextlib.suppress(OSError):
                        os.kill(pid, signal.SIGKILL)
                pid, _ = os.waitpid(-1, 0)
                self._workers.pop(pid, None)
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


def _become(orders: dict[str, Any], fds: list[int], death: int) -> None:
    """Turn this process, which was just forked, into the worker that `orders` describe."""
    channel, stdout, stderr, *shared = fds
    is_program = orders["start"] == "program"
    stdin = channel if is_program else os.open(os.devnull, os.O_RDONLY)
    for source, target in ((stdin, 0), (stdout, 1), (stderr, 2)):
        os.dup2(source, target)
        os.close(source)
    for name, value in orders["environment"].items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value
    if orders.get("memory_limit") is not None:
        _limit_memory(orders["memory_limit"])
    if is_program:
        _execute(orders, death)
    with contextlib.suppress(OSError):
        os.chdir(orders["folder"])
    if orders["start"] == "spawn":
        for fd in (channel, death, *shared):
            os.set_inheritable(fd, True)
        arguments = [*orders["interpreter"], "-c", BOOT.format("child"), "\n".join(orders["path"])]
        numbers = [str(channel), str(death), " ".join(map(str, shared))]
        os.execv(arguments[0], [*arguments, *numbers, *orders["argv"]])
    sys.path[:] = orders["path"]
    sys.argv[:] = orders["argv"]
    child.run(channel, death, shared)


def _limit_memory(limit: int) -> None:
    """Let nothing be allocated beyond `limit`. The worker may lift this to report that it was reached."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _execute(orders: dict[str, Any], death: int) -> NoReturn:
    """Become a program of somebody else's. It inherits nothing from here but its streams, and the kernel's promise to
    kill it with the app.
    """
    command = orders["command"]
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):  # those that are ignored here
            signal.signal(number, signal.SIG_DFL)
        if sys.platform == "linux":
            os.set_inheritable(child.die_with_the_app(death), True)
        os.chdir(orders["folder"])
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"it cannot be started: {error}\n".encode())
        os._exit(127)


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
