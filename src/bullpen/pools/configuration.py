"""Options of pools as they are written in a file, converted to the arguments of `Pool`.

This module starts nothing. It reads a configuration as a whole, and raises `ConfigurationError` with the place of the
first mistake.
"""

from __future__ import annotations

import importlib
import inspect
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from bullpen.errors import ConfigurationError, did_you_mean
from bullpen.pools.config_file import FILE, candidates, duration, section_of, trusted_section_of
from bullpen.pools.options import GROUPED, PoolKeywords
from bullpen.pools.policies import GROUPS, Policy
from bullpen.pools.pool import Pool

SECTION = "tool.bullpen.pools"
ADVICE = "change that, or call Pools.from_toml(path) if you trust all users who can write there"

# Types of values that a file writes as "module:attribute". Where a string is allowed too, it names one of ours.
_IMPORTED = ("Callable", "Wrap", "ErrorTypes", "InitializationDelegate", "Runtime")

_NAME = re.compile(r"\w[\w.-]*")


def read_pools(pools: Mapping[str, Any], source: str) -> dict[str, Pool | dict[str, Any]]:
    """The source of each pool: an existing pool, or checked options."""
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
    """The value of one option. Raises `ValueError` with the reason if it is wrong."""
    if option in GROUPS and isinstance(value, Mapping):
        return _read_group(GROUPS[option], value)
    return _read_value(option, value, _option_types())


def _read_group(group: type[Policy], table: Mapping[str, Any]) -> Policy:
    types = {f"{group.GROUP}.{name}": kind for name, kind in group.option_types().items()}
    return group(**{name: _read_value(f"{group.GROUP}.{name}", value, types) for name, value in table.items()})


def _read_value(option: Any, value: Any, types: Mapping[str, str]) -> Any:
    if option not in types:
        hint = did_you_mean(option, types)
        if option in GROUPED:
            group, name = GROUPED[option]
            hint = f"; it belongs to a group: write {group.GROUP}.{name}"
        raise ValueError(f"{option!r} is not an option of a pool{hint}")
    kind = types[option]
    if "Seconds" in kind and isinstance(value, str):
        return duration(option, value)
    if not any(name in kind for name in _IMPORTED):
        return value
    if isinstance(value, list):
        return tuple(_import(option, part) if isinstance(part, str) else part for part in value)
    if isinstance(value, str) and (":" in value or not kind.startswith("str |")):
        return _import(option, value)
    return value


@cache
def _option_types() -> dict[str, str]:
    """The options that `Pool` has, and their types as they are written."""
    positional = [name for name, one in inspect.signature(Pool).parameters.items() if one.kind is not one.VAR_KEYWORD]
    written = {name: str(Pool.__init__.__annotations__[name]) for name in positional}
    return written | {name: kind.__forward_arg__ for name, kind in PoolKeywords.__annotations__.items()}


def _import(option: str, written: str) -> Any:
    """The object that "module:attribute" names; the attribute may have dots."""
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
        section = trusted_section_of(candidate, ADVICE) if path is None else section_of(candidate)
        if "pools" in section:
            return section["pools"], section.get("default_pool"), str(candidate)
    looked = ", ".join(map(str, paths)) if paths else f"no {FILE} here or above"
    raise ConfigurationError(f"there is no [{SECTION}.NAME] in it", source=looked)
