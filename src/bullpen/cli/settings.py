"""Where a value comes from: a flag, `BULLPEN_*`, `[tool.bullpen]` in pyproject.toml, or the default, in this order.

A setting is written as text everywhere, and read by one function, so that it means the same in all three places.
"""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from bullpen.cli.arguments import names, number, one_of, whole, words
from bullpen.errors import ConfigurationError
from bullpen.pool.written import candidates, did_you_mean, section_of

LOG_LEVELS = ("debug", "info", "warning", "error")
LOOPS = ("auto", "asyncio", "uvloop")
OF_OTHERS = ("pools", "default_pool")  # in the same table of pyproject.toml


class Setting(NamedTuple):
    """Something that may be set once for all commands. `read` refuses what is wrong, as types of argparse do."""

    name: str
    read: Callable[[str], Any]
    default: Any
    summary: str
    between: str = ","  # the items of a list

    @property
    def variable(self) -> str:
        return f"BULLPEN_{self.name.upper()}"


class Found(NamedTuple):
    """A value, and who said so."""

    value: Any
    source: str
    rank: int  # the lower, the stronger


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("app", str, None, "the code, such as app:queue"),
        Setting("url", str, None, "the store, such as sqlite:///jobs.db, for commands that need no code"),
        Setting("concurrency", whole(1, 100_000), 10, "how many tasks run at once, in each process of a worker"),
        Setting("processes", whole(1, 256), 1, "processes of a worker"),
        Setting("queues", names, None, "the queues that a worker serves"),
        Setting("lanes", words, None, "… or lanes, each as queue[,queue…][:permits][@runtime]", " "),
        Setting("grace", number(0, 86_400), 25.0, "seconds that tasks get to end when a worker is told to stop"),
        Setting("imports", names, (), "modules that a worker imports too"),
        Setting("loop", one_of(LOOPS), "auto", f"the event loop of a worker: {', '.join(LOOPS)}"),
        Setting("health", str, None, "a folder in which each process of a worker shows that it is well"),
        Setting("log_level", one_of(LOG_LEVELS), "info", f"of a worker: {', '.join(LOG_LEVELS)}"),
    )
}
EITHER = (("queues", "lanes"),)  # who says one of them has also said that it is not the other


def find_all(typed: Mapping[str, Any] | None = None) -> dict[str, Found]:
    """Every setting. `typed`: what the flags say, None for those that were not typed."""
    found: dict[str, Found] = {}
    _take(found, {name: Found(value, _flag(name), 0) for name, value in (typed or {}).items() if value is not None})
    _take(found, _of_environment())
    _take(found, _of_file())
    return {name: found.get(name, Found(setting.default, "default", 3)) for name, setting in SETTINGS.items()}


def _take(found: dict[str, Found], more: Mapping[str, Found]) -> None:
    """What was not said before."""
    said = found.keys() | {name for pair in EITHER for name in pair if not found.keys().isdisjoint(pair)}
    found.update({name: value for name, value in more.items() if name not in said})


def _flag(name: str) -> str:
    return "--" + {"lanes": "lane", "imports": "import"}.get(name, name.replace("_", "-"))


def _of_environment() -> dict[str, Found]:
    """An empty variable says nothing."""
    written = [(setting, os.environ.get(setting.variable, "")) for setting in SETTINGS.values()]
    return {
        setting.name: Found(_read(setting, text, setting.variable, "the environment"), setting.variable, 1)
        for setting, text in written
        if text
    }


def _of_file() -> dict[str, Found]:
    """What the nearest pyproject.toml with `[tool.bullpen]` says, here or above."""
    for path in candidates():
        section = section_of(path)
        if not section:
            continue
        found = {}
        for name, value in section.items():
            if name in SETTINGS:
                setting = SETTINGS[name]
                text = setting.between.join(map(str, value)) if isinstance(value, list) else str(value)
                found[name] = Found(_read(setting, text, name, f"[tool.bullpen] in {path}"), str(path), 2)
            elif name not in OF_OTHERS:
                known = [*SETTINGS, *OF_OTHERS]
                hint = did_you_mean(name, known) or f"; there is {', '.join(known)}"
                raise ConfigurationError(f"{name!r} is no setting{hint}", source=f"[tool.bullpen] in {path}")
        return found
    return {}


def _read(setting: Setting, text: str, called: str, source: str) -> Any:
    try:
        return setting.read(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigurationError(f"{called} {error}", source=source) from None
