"""``python -m benchmarks.environments FOLDER [PEER…]``: a virtual environment for each peer on a server.

They cannot share one, because they need different versions of redis-py, and of each other. Each gets its newest version
and its own dependencies. Give the folder to ``python -m benchmarks redis --environments FOLDER``.
"""

from __future__ import annotations

import shlex
import subprocess
import sys
from pathlib import Path

from .measure import ROOT
from .model import OURS, Peer
from .suites import SUITES


def main(folder: Path, names: list[str]) -> int:
    """Exit 1 if a peer could not be installed. The others are installed nevertheless."""
    peers = {
        peer.name: peer for suite in ("redis", "postgres", "steps") for peer in SUITES[suite].peers() if peer.install
    }
    failed = [name for name, peer in peers.items() if name != OURS and name in (names or peers) and make(folder, peer)]
    print(f"not installed: {', '.join(failed)}" if failed else "all are installed")
    return 1 if failed else 0


def make(folder: Path, peer: Peer) -> int:
    print(peer.name, flush=True)
    subprocess.run([sys.executable, "-m", "venv", str(folder / peer.name)], check=True)
    wanted = shlex.split(peer.install or "")[2:]  # without the words pip install
    pip = [str(folder / peer.name / "bin" / "python"), "-m", "pip", "--quiet", "--disable-pip-version-check"]
    return subprocess.run([*pip, "install", *wanted, "uvloop", f"{ROOT}[redis,postgres]"], check=False).returncode


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), sys.argv[2:]))
