"""Makes a store from its address."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, unquote_plus, urlencode, urlsplit, urlunsplit

from bullpen.errors import InvalidOption, MissingExtra, UnknownOption, closest
from bullpen.escaping import escape
from bullpen.tasks.storage.memory import MemoryStorage
from bullpen.tasks.storage.port import Storage

ALLOWED = (
    "memory://, sqlite:///relative.db, sqlite:////absolute/path.db (with ?synchronous=full or normal, "
    "?busy_timeout=seconds, ?shared=true), postgresql://user@host/database (with ?schema=, ?notify=, ?listen_url=, "
    "?prepared=, ?migrate=, ?connections=, ?timeout=seconds), redis://host/number or "
    "redis+cluster://host:port,host:port (with ?prefix=)"
)
# Options whose values are shown. All others may be secrets, however they are spelled.
_SHOWN = frozenset(
    "busy_timeout connect_timeout connections database db dbname host migrate notify port prefix prepared schema "
    "shared socket_timeout sslmode synchronous timeout user".split()
)
_HOST = r"(\[[0-9A-Fa-f:.%]+\]|[^:\[\]]*)(:(?P<port>[0-9]*))?"
_POSTGRES = (
    "postgresql://user:password@host:port/database, with a port from 1 to 65535; in a name or a password, write @ as "
    "%40, / as %2F, # as %23, ? as %3F, [ as %5B, and % as %25"
)
# Options of other PostgreSQL clients that are ignored: `timeout` detects a server that does not answer.
_KEEPALIVES = {"keepalives", "keepalives_idle", "keepalives_interval", "keepalives_count", "tcp_user_timeout"}
_REJECTED_UNLESS_OFF = {"channel_binding", "gssencmode"}
_SQLITE = ("busy_timeout", "shared", "synchronous")
_REDIS = {"redis", "rediss", "valkey", "valkeys"}


def open_storage(url: str) -> Storage:
    """The store at `url`, not connected yet: `await storage.open()` connects."""
    if not isinstance(url, str) or "://" not in url:
        raise _wrong(url)
    scheme = url.partition("://")[0].lower()
    if not _is_encodable(url):
        raise _wrong(url)
    if scheme == "memory":
        if url.lower() != "memory://":
            raise _wrong(url)
        return MemoryStorage()
    if scheme == "sqlite":
        return _open_sqlite(url)
    if scheme in ("postgresql", "postgres"):
        return _open_postgres(url)
    server, _, cluster = scheme.partition("+")
    if server in _REDIS and cluster in ("", "cluster"):
        return _open_redis(f"{server}{url[len(scheme) :]}", cluster=bool(cluster))
    raise _wrong(url)


def _is_encodable(url: str) -> bool:
    """Whether the system can use it. The name of a file may have bytes that are no UTF-8, as `os.fsdecode` has them."""
    try:
        os.fsencode(url) if url[:9].lower() == "sqlite://" else url.encode()
    except UnicodeEncodeError:
        return False
    return True


def _open_sqlite(url: str) -> Storage:
    from bullpen.tasks.storage.sqlite.store import SqliteStorage

    try:
        parts = urlsplit(url)
    except ValueError:
        raise _wrong(url) from None
    path = unquote(parts.path.removeprefix("/"))
    if parts.netloc or parts.fragment or not path or path.endswith("/") or path == ":memory:" or "\0" in path:
        raise _wrong(url)
    if os.name != "nt" and re.match(r"[A-Za-z]:[/\\]", path):
        raise InvalidOption("url", url, "sqlite:/// and a path of this system, not of Windows")
    synchronous, busy_timeout, shared = "full", SqliteStorage.busy_timeout, False
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name == "synchronous":
            synchronous = value
        elif name == "busy_timeout":
            busy_timeout = _seconds(name, value)
        elif name == "shared":
            shared = _flag(name, value)
        else:
            raise UnknownOption("sqlite:///", name, _SQLITE)
    return SqliteStorage(path, synchronous=synchronous, busy_timeout=busy_timeout, shared=shared)


def _open_postgres(url: str) -> Storage:
    if importlib.util.find_spec("asyncpg") is None:
        raise MissingExtra("a store on PostgreSQL", "postgres")
    from bullpen.tasks.storage.postgres.store import PostgresStorage

    parts = _parts_of_postgres(url)
    ours: dict[str, Any] = {}
    others = []  # for the driver, for example sslmode
    for name, value in parse_qsl(parts.query, keep_blank_values=True):
        if name in ("schema", "listen_url"):
            ours[name] = value
        elif name in ("notify", "prepared", "migrate"):
            ours[name] = _flag(name, value)
        elif name == "connections":
            ours[name] = _count(name, value)
        elif name in ("timeout", "connect_timeout"):
            ours[name] = _seconds(name, value, above=0.0)
        elif name in _REJECTED_UNLESS_OFF:
            if value not in ("disable", "prefer"):
                raise InvalidOption(name, value, "disable or prefer: the driver, asyncpg, does not support more")
        elif name not in _KEEPALIVES:
            others.append((name, value))
    if "listen_url" in ours:
        _parts_of_postgres(ours["listen_url"], "listen_url")
    return PostgresStorage(urlunsplit(parts._replace(query=urlencode(others))), **ours)


def _parts_of_postgres(url: str, option: str = "url") -> SplitResult:
    """Rejects addresses that the driver would misread, because its error could show a part of the password."""
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _unreadable(option) from None
    credentials, _, place = parts.netloc.rpartition("@")
    options = dict(parse_qsl(parts.query, keep_blank_values=True))
    hosts = [*place.split(","), *options.get("host", "").split(",")]
    hosts += [f":{port}" for port in options.get("port", "").split(",")]
    are_hosts = all(map(_is_host, hosts))
    are_options = not any("@" in name for name in options)
    is_postgres = parts.scheme in ("postgresql", "postgres")
    if parts.fragment or "@" in parts.path + credentials or not (is_postgres and are_hosts and are_options):
        raise _unreadable(option)
    return parts


def _is_host(text: str) -> bool:
    """A host, with or without a port, or the directory of a Unix socket."""
    found = re.fullmatch(_HOST, text)
    is_port = found is not None and (not found["port"] or 1 <= int(found["port"]) <= 65535)
    return text.startswith("/") or (is_port and "@" not in unquote(text))


def _unreadable(option: str) -> InvalidOption:
    """Shows no part of the address, because any part may be the password."""
    return InvalidOption(option, "postgresql://…", _POSTGRES)


def _open_redis(url: str, *, cluster: bool) -> Storage:
    if importlib.util.find_spec("redis") is None:
        raise MissingExtra("a store on Redis or Valkey", "redis")
    from bullpen.tasks.storage.redis.address import split_address
    from bullpen.tasks.storage.redis.store import RedisStorage

    parts = split_address(url)
    words = parse_qsl(parts.query, keep_blank_values=True)
    ours = {name: value for name, value in words if name == "prefix"}
    others = [(name, value) for name, value in words if name not in ours]  # for the driver
    return RedisStorage(urlunsplit(parts._replace(query=urlencode(others))), cluster=cluster, **ours)


def _flag(name: str, value: str) -> bool:
    if value not in ("true", "false"):
        raise InvalidOption(name, value, "true or false")
    return value == "true"


def _count(name: str, value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= 1000:
        raise InvalidOption(name, value, "a whole number from 1 to 1000")
    return int(value)


def _seconds(name: str, value: str, *, above: float = -1.0) -> float:
    try:
        seconds = float(value)
    except ValueError:
        seconds = -1.0
    if not (0 <= seconds < 1e6 and seconds > above):
        raise InvalidOption(name, value, "a number of seconds")
    return seconds


def _wrong(url: object) -> InvalidOption:
    if not isinstance(url, str):
        return InvalidOption("url", url, ALLOWED)
    return InvalidOption("url", masked(url), _probable_form(url) or ALLOWED)


def _probable_form(url: str) -> str | None:
    """The form of the address that was probably meant, without a host, a name or a password."""
    scheme, _, path = url.partition("://") if "://" in url else ("sqlite", "", url)
    kind, _, driver = scheme.lower().partition("+")
    if kind == "sqlite" and path in ("", ":memory:", "/:memory:"):
        return "memory:// for a queue in memory"
    if driver and kind in ("postgresql", "postgres", "sqlite"):
        right = "sqlite:///" if kind == "sqlite" else "postgresql://"
        return f"{right}… (Bullpen chooses the driver)"
    schemes = {"memory": "memory://", "sqlite": "sqlite:///", "postgresql": "postgresql://", "redis": "redis://"}
    if (close := closest(kind, schemes)) not in (None, kind) and kind not in ("postgres", *_REDIS):
        return f"{schemes[close]}…"
    is_file = path.endswith((".db", ".sqlite", ".sqlite3")) and "@" not in path
    if kind == "sqlite" and is_file and not url.startswith("sqlite:///"):
        return "sqlite:///" + path.replace("\\", "/")
    return None


def without_password(url: str) -> str:
    """The address for logs and errors: no password, no value of an option that is not known to be harmless.

    In a malformed address everything before the last @ may be the password, and so may a port that is no number.
    """
    hidden, at, rest = url.rpartition("@")
    if at:
        scheme, user = re.match(r"(\w[\w+.-]*://)?(?:([^:/?#@]+):[^/?#@]*$)?", hidden).groups("")  # type: ignore[union-attr]
        hidden = f"{scheme}{user}:***" if scheme and user else f"{scheme}***"
    place, query, fragment = re.fullmatch(r"([^?#]*)(?:\?([^#]*))?(#.*)?", rest, re.DOTALL).groups("")  # type: ignore[union-attr]
    if at and (scheme or "/" in place):
        hosts, slash, path = place.partition("/")
        place = f"{_without_words(hosts)}{slash}{path}"
    elif not at:
        place = _without_port_of_words(place)
    options = "&".join(map(_harmless, re.split("[&;]", query)))
    return f"{hidden}{at}{place}{'?' if query else ''}{options}{'#***' if fragment else ''}"


def _without_port_of_words(place: str) -> str:
    """`user:password/database`, of which the host is missing, or `host=… password=…`, which is no address."""
    scheme, _, rest = place.partition("://") if "://" in place else ("", "", place)
    hosts, slash, path = rest.partition("/")
    if not scheme and "=" in place:
        return "***"
    if not scheme:
        return re.sub(r"^([^:/\\]*:)(?!\d{1,5}(?:/|$)|[/\\]|$).*", r"\1***", place, flags=re.DOTALL)
    return f"{scheme}://{_without_words(hosts)}{slash}{path}"


def _without_words(hosts: str) -> str:
    """Hosts whose ports are numbers. Any other port may be a password, and so may the text before a %40."""
    shown = [host if _is_host(host) else f"{host.partition(':')[0]}:***" for host in hosts.split(",")]
    return ",".join("***" if "@" in unquote(host) else host for host in shown)


# An address or a part of one: `secret@host:1`, `me:secret/db`, `me:sec\nret`, `password=secret`.
_ADDRESS = re.compile(
    r"://|@|^[^:/\s]+:[^/]+/|^(?=[^\x00-\x1f\x7f]*[\x00-\x1f\x7f])[^:]*:|(?i:pass|pwd|token|secret)\w*="
)
_OPTION = re.compile(r"^(--[^=]*=|-\w=?)")  # before its value, in the same word
_LANE = re.compile(r"[\w.*,-]+(:\d{1,4})?@(thr|proc)[a-z]*")  # `mail:2@process` is no address


def looks_like_address(text: str) -> bool:
    """Whether a text that was typed or set somewhere may be an address, and so may hold a password."""
    may_be = _ADDRESS.search(text) or _ADDRESS.search(unquote(text))
    return bool(may_be) and not names_a_path(text) and not _LANE.fullmatch(text)


def names_a_path(text: str) -> bool:
    """Whether there is such a file or folder, or such a file before `:attribute`."""
    return any(map(os.path.exists, (text, text.rpartition(":")[0])))  # unlike Path's, it takes any text


def without_passwords(message: str, words: Iterable[str]) -> str:
    """A message without the passwords of the addresses among `words`, however it quotes them."""
    for before, word in pairwise(["", *words]):
        value = _OPTION.sub("", word)
        if before == "--url" or word.startswith("--url=") or looks_like_address(value):
            message = _replace(message, value, masked(value))
    return message


def masked(text: str) -> str:
    """What is shown of a text that looks like an address. If its parts cannot be told apart, nothing is shown."""
    shown = without_password(text)
    is_encoded = unquote(text) != text and without_password(unquote(text)) != unquote(text)
    return "***" if shown == text and is_encoded else shown


def _replace(message: str, value: str, shown: str) -> str:
    """Replace `value` in a message that quotes it as it is, by `repr`, among other words, or as a path."""
    if shown == value:
        return message
    path = str(Path(value))
    quoted = [repr(text)[1:-1] for text in (value, path)] + [repr(f"{text}\"'")[1:-4] for text in (value, path)]
    for form in sorted({value, path, escape(value), *quoted}, key=len, reverse=True):
        message = message.replace(form, shown)
    return message


def _harmless(option: str) -> str:
    name, is_set, value = option.partition("=")
    if not value and (is_set or not name):
        return option
    return option if unquote_plus(name) in _SHOWN else f"{name}=***" if is_set else "***"
