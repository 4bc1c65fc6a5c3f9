"""The floor of a script with a process pool: its imports, a second interpreter with those of a worker, and one fork.

Its argument says whether the second interpreter starts `first`, or `after` the imports.
"""

import socket
import subprocess
import sys

BOOT = """
import os, socket, sys
sys.path[:] = sys.argv[2].split(chr(10))
import bullpen.pools.runtimes.process.forkserver
from bullpen import Pool
if not os.fork():
    socket.socket(fileno=int(sys.argv[1])).send(b"2")
    os._exit(0)
os.wait()
"""


def start_interpreter() -> socket.socket:
    mine, theirs = socket.socketpair()
    command = [sys.executable, "-c", BOOT, str(theirs.fileno()), "\n".join(sys.path)]
    subprocess.Popen(command, pass_fds=[theirs.fileno()])
    return mine


if __name__ == "__main__":
    started = start_interpreter() if sys.argv[1] == "first" else None
    from bullpen import Pool

    Pool(2, runtime="process").close()  # imports its parts; no worker starts
    answer = started or start_interpreter()
    assert answer.recv(1) == b"2"
    from benchmarks.apps.clock import note_time

    note_time()
