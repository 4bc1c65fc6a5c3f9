"""Makes a store from its address."""

from __future__ import annotations

import importlib.util
import os
import re
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

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
    "%40, / as %2F, # as %23, ; as %3B, = as %3D, ? as %3F, [ as %5B, and % as %25"
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
    if not _is_encodable(url) or re.search(r"[\t\r\n]", url.strip()):  # which urlsplit would remove
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
        elif name.isidentifier():
            raise UnknownOption("sqlite:///", name, _SQLITE)
        else:
            raise _wrong(url)
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
    is_path = not re.search("[@;=]", parts.path)
    if parts.fragment or "@" in credentials or not (is_postgres and is_path and are_hosts and are_options):
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
    is_file = re.fullmatch(rf"([A-Za-z]:[/\\])?{_PLAIN.pattern}\.(db|sqlite|sqlite3)", path)
    if kind == "sqlite" and is_file and not url.startswith("sqlite:///"):
        return "sqlite:///" + path.replace("\\", "/")
    return None


# An address of which each part has only one meaning. In any other text a password may be anywhere.
_PLAIN_HOST = r"(\[[0-9a-f:.]+\]|[\w.-]*)(:\d{0,5})?"
_READABLE = re.compile(
    r"(?P<scheme>[a-z][a-z0-9+.-]*://)((?P<user>[\w.~-]*|\*{3})(?P<password>:[^@:/?#\[\]\s\0-\x1f\x7f]*)?@)?"
    rf"(?P<place>{_PLAIN_HOST}(,{_PLAIN_HOST})*(/[\w./~ (),+-]*)?)(\?(?P<options>[^@#]*))?",
    re.IGNORECASE,
)
_SCHEMES = ("memory", "sqlite", "postgresql", "postgres", *sorted(_REDIS))
_PLAIN = re.compile(r"[\w./\\~ (),+-]*")


def masked(text: str) -> str:
    """An address for errors and tables: no password, no value of an option that is not known to be harmless.

    Where the password ends is known only in an address that has each of its parts in its place. Of any other text
    only a known scheme is shown, unless it looks like the path of a file.
    """
    if (address := _READABLE.fullmatch(text)) is not None:
        user = f"{address['user']}:" if address["user"] and address["password"] else ""
        credentials = f"{user}***@" if address["user"] or address["password"] else ""
        options = "&".join(map(_harmless, re.split("[&;]", address["options"] or "")))
        return f"{address['scheme']}{credentials}{address['place']}{'?' if options else ''}{options}"
    scheme, is_address, _ = text.partition("://")
    if is_address and scheme.lower().partition("+")[0] in _SCHEMES:
        return f"{scheme}://***"
    return text if _PLAIN.fullmatch(text) else "***"


def _harmless(option: str) -> str:
    name, is_set, value = option.partition("=")
    if not value and (is_set or not name) and _PLAIN.fullmatch(name):
        return option
    shown = value if name in _SHOWN and _PLAIN.fullmatch(value) else "***"
    return f"{name}={shown}" if is_set and _PLAIN.fullmatch(name) else "***"


# An address or a part of one: `secret@host:1`, `me:secret/db`, `redis:me:secret`, `me:sec\nret`, `password=secret`.
_ADDRESS = re.compile(
    r"://|@|^//|^[^:/\s]+:/|^[^:/\s]+:[^/]+/|^(?=[^\x00-\x1f\x7f]*[\x00-\x1f\x7f])[^:]*:"
    r"|^(postgres|redis|valkey|mysql|amqp)\w*:(?![\w.]*$)"
    r"|(pass|pwd|token|secret|auth|credential|api_?key)\w{0,20}\s{0,3}(=|:\s|:$)",
    re.IGNORECASE,
)
_OPTION = re.compile(r"^(--[^=]*=|-\w=?)")  # before its value, in the same word
_LANE = re.compile(r"[\w.*,-]+(:\d{1,4})?@(thr|proc)[a-z]*")  # `mail:2@process` is no address


def looks_like_address(text: str) -> bool:
    """Whether a text that was typed or set somewhere may be an address, and so may hold a password."""
    return _ADDRESS.search(_decoded(text)) is not None and not names_a_path(text) and not _LANE.fullmatch(text)


def _decoded(text: str) -> str:
    """Without percent-encoding, also if it was encoded a few times."""
    for _ in range(4):
        text = unquote(text)
    return text


def names_a_path(text: str) -> bool:
    """Whether there is such a file or folder, or such a file before `:attribute`."""
    return any(map(os.path.exists, (text, text.rpartition(":")[0])))  # unlike Path's, it takes any text


def without_passwords(message: str, words: Iterable[str]) -> str:
    """A message without the passwords of the addresses among `words`, however it quotes them.

    A shell has split a password with a blank: the words behind an address that ends in its password belong to it.
    """
    continues = False
    for before, word in pairwise(["", *words]):
        value = _OPTION.sub("", word)
        continues = continues and not word.startswith("-")
        if before == "--url" or word.startswith("--url=") or looks_like_address(value):
            shown = masked(value)
            continues = shown != value and shown.endswith("***")
            for form in _quoted(value) if shown != value else ():
                message = message.replace(form, shown)
        elif not continues:
            continue
        for part in {*map(str.strip, value.split(",")), *value.split()}:  # a list of names was split there
            if len(part) > 2 and (continues or masked(part) != part):
                for form in _quoted(part):
                    message = re.sub(rf"(?<!\w){re.escape(form)}(?!\w)", "***", message)
    return message


def _quoted(value: str) -> list[str]:
    """How a message may quote it: as it is, by `repr`, among other words, or as a path."""
    path = str(Path(value))
    quoted = [repr(text)[1:-1] for text in (value, path)] + [repr(f"{text}\"'")[1:-4] for text in (value, path)]
    return sorted({value, path, escape(value), *quoted}, key=len, reverse=True)
