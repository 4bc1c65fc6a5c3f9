"""Settings come from a flag, `BULLPEN_*`, `[tool.bullpen]` in pyproject.toml, or the default, in this order.

One function parses a setting from text, so it means the same in all three places.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

from bullpen.cli.arguments import names, number, one_of, whole, words
from bullpen.cli.worker_process.parent_link import VARIABLE as PARENT_LINK
from bullpen.errors import ConfigurationError, did_you_mean
from bullpen.escaping import escape
from bullpen.pools.config_file import candidates, section_of, trusted_section_of

LOG_LEVELS = ("debug", "info", "warning", "error")
LOOPS = ("auto", "asyncio", "uvloop")
ADVICE = "change that, or give it with --config if you trust all users who can write there"
# Variables that Bullpen, its tests and benchmarks set, and those of Kubernetes for a service named "bullpen".
OWN_VARIABLE = re.compile(r"BULLPEN_((APP_PROCESS|PARENT_LINK)$|(TEST|BENCH)_|SERVICE_(HOST|PORT)|PORT($|_\d))")
OF_OTHERS = ("pools", "default_pool")  # keys of the same table that other parts of Bullpen read


class Setting(NamedTuple):
    """A setting of all commands. `read` parses its text and raises as types of argparse do."""

    name: str
    read: Callable[[str], Any]
    default: Any
    summary: str
    between: str = ","  # the items of a list

    @property
    def variable(self) -> str:
        return f"BULLPEN_{self.name.upper()}"


class FoundSetting(NamedTuple):
    """A value and its source."""

    value: Any
    source: str
    rank: int  # a lower rank wins


SETTINGS = {
    setting.name: setting
    for setting in (
        Setting("app", str, None, "module and attribute of the TaskQueue, such as app:queue"),
        Setting("url", str, None, "the store, such as sqlite:///jobs.db, for commands that need no code"),
        Setting("concurrency", whole(1, 100_000), 10, "how many tasks each worker process runs at once"),
        Setting("processes", whole(1, 256), 1, "number of worker processes"),
        Setting("queues", names, None, "queues that a worker serves"),
        Setting("lanes", words, None, "lanes that a worker serves, each as queue[,queue…][:permits][@runtime]", " "),
        Setting("grace", number(0, 86_400), 25.0, "seconds to finish running tasks after the first stop signal"),
        Setting("imports", names, (), "more modules that a worker imports"),
        Setting("loop", one_of(LOOPS), "auto", f"event loop of a worker: {', '.join(LOOPS)}"),
        Setting("health", str, None, "folder for the health files of worker processes"),
        Setting("metrics_port", whole(0, 65_535), None, "port for the Prometheus metrics of a worker"),
        Setting("metrics_host", str, "127.0.0.1", "address for the Prometheus metrics of a worker"),
        Setting("log_level", one_of(LOG_LEVELS), "info", f"log level of a worker: {', '.join(LOG_LEVELS)}"),
    )
}
read_texts: list[str] = []  # of the settings that were found, for errors: any of them may be an address
EITHER = (("queues", "lanes"),)  # setting one of a pair unsets the other


def add_config(parser: argparse.ArgumentParser) -> None:
    help = "read [tool.bullpen] of FILE, and not of the nearest pyproject.toml"
    parser.add_argument("--config", metavar="FILE", help=help)


def find_all(typed: Mapping[str, Any] | None = None, config: str | None = None) -> dict[str, FoundSetting]:
    """Every setting. `typed`: values of flags; None for flags that are absent. `config`: the file of --config."""
    read_texts.clear()
    found: dict[str, FoundSetting] = {}
    _take(
        found, {name: FoundSetting(value, _flag(name), 0) for name, value in (typed or {}).items() if value is not None}
    )
    _take(found, _of_environment())
    _take(found, _of_file(config))
    return {name: found.get(name, FoundSetting(setting.default, "default", 3)) for name, setting in SETTINGS.items()}


def _take(found: dict[str, FoundSetting], more: Mapping[str, FoundSetting]) -> None:
    """Add settings that no stronger source has set."""
    said = found.keys() | {name for pair in EITHER for name in pair if not found.keys().isdisjoint(pair)}
    found.update({name: value for name, value in more.items() if name not in said})


def _flag(name: str) -> str:
    return "--" + {"lanes": "lane", "imports": "import"}.get(name, name.replace("_", "-"))


def _of_environment() -> dict[str, FoundSetting]:
    """An empty variable counts as unset. A misspelled one is a warning, because other programs may have its name."""
    if PARENT_LINK not in os.environ:  # the supervisor has warned
        for name in sorted(os.environ):
            _warn_unless_known(name)
    written = [(setting, os.environ.get(setting.variable, "")) for setting in SETTINGS.values()]
    return {
        setting.name: FoundSetting(_read(setting, text, setting.variable, "the environment"), setting.variable, 1)
        for setting, text in written
        if text
    }


@cache
def _warn_unless_known(name: str) -> None:
    known = [setting.variable for setting in SETTINGS.values()]
    if name.startswith("BULLPEN_") and name not in known and not OWN_VARIABLE.match(name):
        hint = did_you_mean(name, known)
        warning = f"bullpen: warning: the variable {name} is not a setting{hint}"
        print(escape(_without_passwords(warning, name.removeprefix("BULLPEN_"))), file=sys.stderr)


def _of_file(config: str | None) -> dict[str, FoundSetting]:
    """Settings of this file, or of the nearest pyproject.toml with `[tool.bullpen]`, in this folder or above."""
    for path in candidates() if config is None else [Path(config)]:
        section = section_of(path) if config is not None else trusted_section_of(path, ADVICE)
        if not section:
            continue
        found = {}
        for name, value in section.items():
            if name in SETTINGS:
                setting = SETTINGS[name]
                text = setting.between.join(map(str, value)) if isinstance(value, list) else str(value)
                found[name] = FoundSetting(_read(setting, text, name, f"[tool.bullpen] in {path}"), str(path), 2)
            elif name not in OF_OTHERS:
                known = [*SETTINGS, *OF_OTHERS]
                hint = did_you_mean(name, known) or f"; the settings are {', '.join(known)}"
                problem = _without_passwords(f"{name!r} is not a setting{hint}", name)
                raise ConfigurationError(problem, source=f"[tool.bullpen] in {path}")
        return found
    if config is not None:
        raise ConfigurationError("it has no [tool.bullpen]", source=config)
    return {}


def _read(setting: Setting, text: str, called: str, source: str) -> Any:
    read_texts.append(text)
    try:
        return setting.read(text)
    except argparse.ArgumentTypeError as error:
        raise ConfigurationError(_without_passwords(f"{called} {error}", text), source=source) from None


def _without_passwords(problem: str, text: str) -> str:
    from bullpen.tasks.storage.open import without_passwords  # here, because few settings are wrong

    return without_passwords(problem, [text])
