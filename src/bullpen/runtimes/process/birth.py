"""How a process that its keeper has just forked becomes a worker.

It may be forked before anybody wants it: then it waits, and becomes one within a moment when its orders come.
"""

from __future__ import annotations

import contextlib
import os
import pickle
import signal
import socket
import sys
from typing import Any, NoReturn

from bullpen.runtimes.process import child

MOST_FDS = 5  # that come with orders
LARGEST = 64 * 1024  # bytes of orders for one that waits
BOOT = (
    "import sys; sys.path[:] = sys.argv[1].split(chr(10)); "
    "from bullpen.runtimes.process.{0} import main; main()"  # by name: nothing of it shall be called `__main__`
)


class Spare:
    """A process that was forked ahead, from its keeper's side."""

    def __init__(self, pid: int, sock: socket.socket) -> None:
        self.pid = pid
        self._sock = sock
        sock.setblocking(False)

    def take(self, orders: bytes, fds: list[int]) -> bool:
        """Let it become what `orders` say, and no spare any more. False if that cannot be: it ends then."""
        with self._sock:
            try:
                taken = len(orders) <= LARGEST and socket.send_fds(self._sock, [orders], fds) == len(orders)
            except OSError:  # it is gone
                return False
            if not taken:
                os.kill(self.pid, signal.SIGKILL)
        return taken

    def close(self) -> None:
        """It has ended."""
        self._sock.close()


def wait_for_orders(sock: socket.socket, alive: int, death: int) -> None:
    """Be a spare process. Orders may come in pieces; when they are complete, its keeper closes the socket."""
    with sock:
        data, fds, _, _ = socket.recv_fds(sock, LARGEST, MOST_FDS)
        while more := sock.recv(LARGEST):
            data += more
    if data:  # else its keeper is gone, or has no use for it
        become(data, fds, alive, death)


def become(data: bytes, fds: list[int], alive: int, death: int) -> None:
    """Turn this process into the worker that the orders in `data` describe. `alive` is what has it killed with the app,
    `death` where it got that from.
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
    """Let nothing be allocated beyond `limit`. The worker may lift this to report that it was reached."""
    import resource

    resource.setrlimit(resource.RLIMIT_DATA, (limit, resource.getrlimit(resource.RLIMIT_DATA)[1]))


def _execute(orders: dict[str, Any], alive: int) -> NoReturn:
    """Become a program of somebody else's. It inherits nothing from here but its streams, and the kernel's promise to
    kill it with the app.
    """
    command = orders["command"]
    try:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGPIPE, signal.SIGXFSZ):  # those that are ignored here
            signal.signal(number, signal.SIG_DFL)
        if sys.platform == "linux":
            os.set_inheritable(alive, True)
        os.chdir(orders["folder"])
        os.execvp(command[0], command)
    except OSError as error:
        os.write(2, f"it cannot be started: {error}\n".encode())
        os._exit(127)
