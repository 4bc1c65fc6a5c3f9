"""Options of pools as people write them in a file, turned into what `Pool` takes.

Nothing here starts anything: a configuration is read as a whole, and the first thing that is wrong in it raises
`ConfigurationError`, which says where.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bullpen.errors import ConfigurationError
from bullpen.pool.pool import Pool
from bullpen.pool.written import FILE, candidates, did_you_mean, duration, section_of

SECTION = "tool.bullpen.pools"

# Options whose value is something to be called: in a file, "module:attribute".
_FUNCTIONS = ("initialization", "initializer", "observer", "taint_on", "worker", "wrap")
_NAMES_OR_FUNCTIONS = ("runtime", "scheduler")  # a string without a colon is the name of one of ours

_NAME = re.compile(r"\w[\w.-]*")


def read_pools(pools: Mapping[str, Any], source: str) -> dict[str, Pool | dict[str, Any]]:
    """What to make each pool of: a pool that is there already, or checked options."""
    if not isinstance(pools, Mapping):
        raise ConfigurationError(f"expected a table of pools by name, got {pools!r}", source=source)
    if not pools:
        raise ConfigurationError("it has no pools; give at least one", source=source)
    read: dict[str, Pool | dict[str, Any]] = {}
    for name, value in pools.items():
        if not isinstance(name, str) or not _NAME.fullmatch(name):
            allowed = "letters, digits, '_', '-' and '.', and no '-' or '.' at the beginning"
            raise ConfigurationError(f"{name!r} is no name for a pool: {allowed}", source=source)
        read[name] = value if isinstance(value, Pool) else {"name": name} | read_options(name, value, source)
    return read


def read_options(pool: str, options: Any, source: str) -> dict[str, Any]:
    """The options of one pool: names checked, durations in seconds, functions imported."""
    if not isinstance(options, Mapping):
        problem = f"expected a Pool, or a table of its options, got {options!r}"
        if type(options).__name__ == "AsyncPool":
            problem += "; an AsyncPool is awaited, and belongs to an event loop: keep it by itself, in an async with"
        raise ConfigurationError(problem, source=source, pool=pool)
    read = {}
    for option, value in options.items():
        try:
            read[option] = _read(option, value)
        except ValueError as error:
            raise ConfigurationError(str(error), source=source, pool=pool, option=str(option)) from error.__cause__
    return read


def _read(option: Any, value: Any) -> Any:
    """The value of one option; `ValueError` says what is wrong with it."""
    annotations = _annotations()
    if option not in annotations:
        raise ValueError(f"{option!r} is not an option of a pool" + did_you_mean(option, annotations))
    if "Seconds" in annotations[option]:
        return _in_seconds(option, value)
    if isinstance(value, list) and option in _FUNCTIONS:
        return tuple(_import(option, part) if isinstance(part, str) else part for part in value)
    if isinstance(value, str) and (option in _FUNCTIONS or (option in _NAMES_OR_FUNCTIONS and ":" in value)):
        return _import(option, value)
    return value


@cache
def _annotations() -> dict[str, str]:
    """The options there are, and their types as they are written."""
    parameters = list(inspect.signature(Pool.__init__).parameters.values())[1:]
    return {parameter.name: str(parameter.annotation) for parameter in parameters}


def _in_seconds(option: str, value: Any) -> Any:
    if isinstance(value, list):
        return tuple(_in_seconds(option, part) for part in value)
    return duration(option, value) if isinstance(value, str) else value


def _import(option: str, written: str) -> Any:
    """What "module:attribute" stands for; the attribute may have dots."""
    module_name, colon, attributes = written.partition(":")
    if not (module_name and colon and attributes):
        raise ValueError(f"{option} must be written as 'module:attribute', got {written!r}")
    try:
        found: Any = importlib.import_module(module_name)
    except Exception as error:
        raise ValueError(f"{option} = {written!r}: importing {module_name!r} raised {error!r}") from error
    for attribute in attributes.split("."):
        try:
            found = getattr(found, attribute)
        except AttributeError:
            message = f"{option} = {written!r}: {module_name!r} was imported, but has no {attribute!r}"
            raise ValueError(message + did_you_mean(attribute, dir(found))) from None
    return found


# Files.


def read_toml(path: Path | None) -> tuple[Mapping[str, Any], str | None, str]:
    """The pools of a file by name, the name of the default one if the file says so, and the file.

    Without a path it is the nearest `pyproject.toml`, here or above, that has pools.
    """
    paths = candidates() if path is None else [path]
    for candidate in paths:
        section = section_of(candidate)
        if "pools" in section:
            return section["pools"], section.get("default_pool"), str(candidate)
    looked = ", ".join(map(str, paths)) if paths else f"no {FILE} here or above"
    raise ConfigurationError(f"there is no [{SECTION}.NAME] in it", source=looked)
