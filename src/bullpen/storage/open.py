"""From an address to a store."""

from __future__ import annotations

from urllib.parse import parse_qsl, unquote, urlsplit

from bullpen.errors import InvalidOption
from bullpen.storage.memory import MemoryStorage
from bullpen.storage.port import Storage

ALLOWED = (
    "memory://, sqlite:///relative.db, sqlite:////absolute/path.db (with ?synchronous=full or normal, "
    "?busy_timeout=seconds), postgresql://host/database or redis://host/number"
)
_EXTRAS = {"postgresql": "postgres", "postgres": "postgres", "redis": "redis", "rediss": "redis", "valkey": "redis"}


def open_storage(url: str) -> Storage:
    """The store at `url`. Nothing is opened yet: that is `await storage.open()`."""
    if not isinstance(url, str) or "://" not in url:
        raise _wrong(url)
    scheme = url.partition("://")[0].lower()
    if scheme in _EXTRAS:
        there = f"memory:// or sqlite:///…; stores on {_EXTRAS[scheme]} are not there yet"
        raise InvalidOption("url", _without_password(url), there)
    if scheme == "memory":
        if url.lower() != "memory://":
            raise _wrong(url)
        return MemoryStorage()
    if scheme == "sqlite":
        return _open_sqlite(url)
    raise _wrong(url)


def _open_sqlite(url: str) -> Storage:
    from bullpen.storage.sqlite.store import SqliteStorage

    parts = urlsplit(url)
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or parts.fragment or not path or path.endswith("/") or path == ":memory:":
        raise _wrong(url)
    synchronous, busy_timeout = "full", SqliteStorage.busy_timeout
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "synchronous":
            synchronous = value
        elif name == "busy_timeout":
            busy_timeout = _seconds(name, value)
        else:
            raise _wrong(url)
    return SqliteStorage(path, synchronous=synchronous, busy_timeout=busy_timeout)


def _seconds(name: str, value: str) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds < 1e6:
        raise InvalidOption(name, value, "a number of seconds")
    return seconds


def _wrong(url: object) -> InvalidOption:
    return InvalidOption("url", _without_password(url) if isinstance(url, str) else url, ALLOWED)


def _without_password(url: str) -> str:
    """What may be shown and logged."""
    scheme, _, rest = url.partition("://")
    credentials, at, place = rest.rpartition("@")
    user, colon, _ = credentials.partition(":")
    return f"{scheme}://{user}{':***' if colon else ''}{at}{place}" if at else url
