"""One measurement in a process of its own: ``python -m benchmarks.child SUITE WORK CONTESTANT SIZES``.

A process per measurement keeps one peer's garbage, threads and grown heap from slowing down the next one. The sizes are
a JSON object, and so is the last line of standard output. ``SUITE --probe [PEER]`` instead prints the peers that this
interpreter can import.
"""

from __future__ import annotations

import json
import logging
import platform
import sys
import sysconfig
from collections.abc import Sequence
from importlib import import_module, metadata

from .model import Peer
from .suites import SUITES


def main(arguments: list[str]) -> None:
    suite = SUITES[arguments[0]]
    if arguments[1] == "--probe":
        print(json.dumps(probe([peer for peer in suite.peers() if peer.name in (arguments[2:] or [peer.name])])))
        return
    logging.disable(logging.WARNING)  # otherwise the log lines would dominate the measurement
    work, label, sizes = arguments[1:]
    figures = suite.find(work, label).measure(type(suite.full)(**json.loads(sizes)))
    print(json.dumps(dict(figures)))


def probe(peers: Sequence[Peer]) -> dict[str, object]:
    """This interpreter, the versions of its peers, and the reason for each missing one."""
    versions: dict[str, str] = {}
    missing: dict[str, str] = {}
    for peer in peers:
        module_name, _, attribute = peer.requires.partition(":")
        try:
            module = import_module(module_name)
            getattr(module, attribute)
        except Exception as error:
            missing[peer.requires] = f"{type(error).__name__}: {error}"
            continue
        if peer.distribution:
            versions[peer.distribution] = _version(peer.distribution, module)
    free_threaded = bool(sysconfig.get_config_var("Py_GIL_DISABLED"))
    return {
        "python": platform.python_version(),
        "implementation": platform.python_implementation() + (" free-threaded" if free_threaded else ""),
        "versions": versions,
        "missing": missing,
    }


def _version(distribution: str, module: object) -> str:
    try:
        return metadata.version(distribution)
    except metadata.PackageNotFoundError:
        return str(getattr(module, "__version__", "unreleased"))


if __name__ == "__main__":
    main(sys.argv[1:])
