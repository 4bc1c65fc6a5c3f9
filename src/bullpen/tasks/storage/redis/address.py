"""The address of a server, and the options in it."""

from __future__ import annotations

import re
from urllib.parse import SplitResult, parse_qsl, unquote, urlencode, urlsplit, urlunsplit

from bullpen.errors import InvalidOption

_TIMEOUT = 5.0  # seconds that a reply may take, unless the address has another `socket_timeout`
_DRIVER_SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}
_FORBIDDEN = frozenset({"decode_responses", "max_connections"})  # options of redis-py that Bullpen sets itself


def split_address(url: str) -> SplitResult:
    """Raises InvalidOption. Its text has no part of the address that may belong to a password."""
    try:
        parts = urlsplit(url)
        hosts = parts.netloc.rpartition("@")[2].split(",")
        are_hosts = all(urlsplit(f"//{host}").port != 0 and "@" not in unquote(host) for host in hosts)
    except ValueError:
        are_hosts = False
    if not are_hosts or parts.fragment or not re.fullmatch(r"/?|/\d+", parts.path):
        allowed = (
            "redis://user:password@host:port/number (in a password, write %23 for #, %2F for /, %3F for ?, %5B for [)"
        )
        raise InvalidOption("url", f"{url.partition('://')[0]}://…", allowed) from None
    return parts


def split_timeout(url: str) -> tuple[str, float]:
    """The address for redis-py, without `socket_timeout`, and how long a reply may take."""
    parts = split_address(url)
    words = dict(parse_qsl(parts.query, keep_blank_values=True))
    for name in _FORBIDDEN.intersection(words):
        raise InvalidOption("url", f"?{name}", "an address without it, because Bullpen sets it")
    timeout = _seconds(words.pop("socket_timeout", None))
    return urlunsplit(
        parts._replace(scheme=_DRIVER_SCHEMES.get(parts.scheme, parts.scheme), query=urlencode(words))
    ), timeout


def _seconds(given: str | None) -> float:
    try:
        timeout = _TIMEOUT if given is None else float(given)
    except ValueError:
        timeout = 0.0
    if not 0.0 < timeout < 1e6:
        raise InvalidOption("socket_timeout", given, "a number of seconds above 0")
    return timeout


def node_addresses(url: str) -> list[str]:
    """An address for each node that is named. redis-py finds the others through them."""
    hosts = urlsplit(url).netloc.rpartition("@")[2].split(",")
    return [with_host(url, host) for host in hosts]


def with_host(url: str, host: str) -> str:
    parts = urlsplit(url)
    credentials, at, _ = parts.netloc.rpartition("@")
    return urlunsplit(parts._replace(netloc=f"{credentials}{at}{host}"))


def host_and_port(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "localhost", parts.port or 6379
