"""A Chromium for the tests of the dashboard: `$CHROMIUM`, one on the PATH, or Debian's package, which root installs."""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

NONE = "there is no Chromium: set $CHROMIUM to its path, or install the package chromium"


def find_chromium() -> str:
    """The path of a Chromium. Without one the test is skipped; in continuous integration it fails."""
    found = _installed() or _install()
    if found is None:
        (pytest.fail if os.environ.get("CI") else pytest.skip)(NONE)
    return found


def _installed() -> str | None:
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def _install() -> str | None:
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return None
    with (Path(tempfile.gettempdir()) / "bullpen-tests-chromium.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # several processes run tests
        if _installed() is None:
            for words in (["update"], ["install", "--yes", "--no-install-recommends", "chromium"]):
                subprocess.run(["apt-get", "--quiet", *words], check=False, capture_output=True, timeout=500)
    return _installed()
