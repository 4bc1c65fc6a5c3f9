"""The parts of reading `[tool.bullpen]`: its files, durations like "30s", and suggestions for misspelled names."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bullpen.errors import ConfigurationError
from bullpen.trusted_files import why_untrusted

FILE = "pyproject.toml"
LARGEST = 1 << 20  # bytes

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|m|h|d)")
_UNITS = {"us": 1e-6, "ms": 1e-3, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}


def duration(option: str, written: str) -> float:
    """Seconds, from something like "250ms", "30s", "1.5 h"."""
    found = _DURATION.fullmatch(written.strip())
    if found is None:
        raise ValueError(f"{option} must be a number of seconds, or like '250ms', '30s', '5m', '2h', got {written!r}")
    return float(found[1]) * _UNITS[found[2]]


def candidates() -> list[Path]:
    """Each `pyproject.toml`, here and above, the nearest one first."""
    try:
        here = Path.cwd()
    except OSError:  # the current folder was removed
        return []
    files = (folder / FILE for folder in (here, *here.parents))
    return [file for file in files if os.path.isfile(file)]  # False, too, where this user may not look


def trusted_section_of(path: Path, advice: str) -> Mapping[str, Any]:
    """`[tool.bullpen]` of a file that was not named. Raises ConfigurationError if another user can write it."""
    why = why_untrusted(path)
    try:
        found = section_of(path)
    except ConfigurationError:
        if why:
            return {}
        raise
    if found and why:
        raise ConfigurationError(f"{why}, and it names code to import; {advice}", source=str(path))
    return found


def section_of(path: Path) -> Mapping[str, Any]:
    """`[tool.bullpen]`; empty if there is none."""
    import tomllib  # here, because most programs have no such file

    try:
        with path.open("rb") as file:
            content = file.read(LARGEST + 1)
        if len(content) > LARGEST:
            raise ConfigurationError(f"it has more than {LARGEST} bytes", source=str(path))
        found: Mapping[str, Any] = tomllib.loads(content.decode())
    except OSError as error:
        raise ConfigurationError(f"it cannot be read: {error}", source=str(path)) from error
    except (ValueError, RecursionError) as error:  # no TOML, no UTF-8, or nested too deeply
        raise ConfigurationError(f"it is not valid TOML: {error}", source=str(path)) from error
    for key in ("tool", "bullpen"):
        found = found.get(key, {})
        if not isinstance(found, Mapping):
            raise ConfigurationError(f"{key!r} has to be a table, and is a {type(found).__name__}", source=str(path))
    return found
