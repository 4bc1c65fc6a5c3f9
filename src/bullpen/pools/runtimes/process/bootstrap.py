"""How a process that the forkserver has forked becomes a worker.

A spare process is forked in advance. It waits for its orders, and then becomes a worker without another fork.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import resource
import signal
import socket
import sys
from typing import Any, NoReturn

from bullpen.pools.runtimes.process import child

MOST_FDS = 6  # descriptors that come with an order
LARGEST = 64 * 1024  # bytes of an order for a spare process
FOR_REPORT = 16 * 1024 * 1024  # bytes beyond the memory limit, for the report that it was reached
BOOT = (
    "import sys; sys.path[:] = sys.argv[1].split(chr(10)); "
    "from bullpen.pools.runtimes.process.{0} import main; main()"  # so no module is called `__main__`
)


class SpareProcess:
    """A process that was forked in advance, as the forkserver sees it."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self._sock = sock
        sock.setblocking(False)

    def take(self, orders: bytes, fds: list[int]) -> bool:
        """Send it the orders of a worker. False if that fails: then it ends."""
        with self._sock:
            try:
                taken = len(orders) <= LARGEST and socket.send_fds(self._sock, [orders], fds) == len(orders)
            except OSError:  # it has ended
                return False
            if not taken:
                os.kill(self.pid, signal.SIGKILL)
        return taken

    def close(self) -> None:
        """It has ended."""
        self._sock.close()


def wait_for_orders(sock: socket.socket, alive: int, death: int) -> None:
    """Be a spare process. Orders may come in pieces; the forkserver closes the socket after the last one."""
    with sock:
        data, fds, _, _ = socket.recv_fds(sock, LARGEST, MOST_FDS)
        child.keep_to_itself(*fds)
        while more := sock.recv(LARGEST):
            data += more
    if data:  # else the forkserver has ended, or does not need it
        become_worker(data, fds, alive, death)


def become_worker(data: bytes, fds: list[int], alive: int, death: int) -> None:
    """Turn this process into the worker that the orders in `data` describe. `death` is the pipe that ends with the app,
    `alive` the descriptor of it that has this process killed then.
    """
    orders = pickle.loads(data)
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
        _execute(orders, alive)
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
    child.run(channel, shared)


def _limit_memory(limit: int) -> None:
    """Limit the memory of this process. The worker lifts the soft limit to report that it was reached. The hard limit,
    which no process without privileges can raise, leaves memory for the report only.
    """
    most = resource.getrlimit(resource.RLIMIT_DATA)[1]
    wanted = [limit, limit + FOR_REPORT]
    soft, hard = wanted if most == resource.RLIM_INFINITY else (min(most, each) for each in wanted)
    resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))


def _execute(orders: dict[str, Any], alive: int) -> NoReturn:
    """Become the program of the user. It inherits its standard streams, and the descriptor that has it killed with the
    app.
    """
    command = orders["command"]
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):  # which are ignored here
            signal.signal(number, signal.SIG_DFL)
        if sys.platform == "linux":
            os.set_inheritable(alive, True)
        os.chdir(orders["folder"])
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"the program cannot be started: {error}\n".encode())
        os._exit(127)
