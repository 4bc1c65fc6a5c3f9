"""Who may do what. Pure decisions about one request: the time and random numbers are arguments.

- `Host` must be one of the known names: another page cannot reach the dashboard through a name that it controls.
- A browser sends `Origin` with every request that changes something: it must be the dashboard itself.
- A visitor is known by a session, which a token opened, or by the user header of a trusted proxy. A visitor who is
  neither may look, on loopback and if the rules allow it, but changes nothing and sees no arguments and no results.
- A change also needs the CSRF token of the visitor, which only the pages of the dashboard contain.
"""

from __future__ import annotations

import hashlib
import hmac
import ipaddress
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from urllib.parse import urlsplit

from bullpen.errors import InvalidOption, InvalidOptionType

LOOPBACK_NAMES = ("localhost", "127.0.0.1", "[::1]")
SHORTEST_TOKEN = 20
SESSION_SECONDS = 12 * 3600
LONGEST_USER = 100
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-forwarded-proto", "x-real-ip")

_SESSION = re.compile(r"(?P<id>[\w-]{10,64})\.(?P<until>\d{1,12})\.(?P<signature>[0-9a-f]{64})")
_HOST = re.compile(r"(?P<name>[a-z0-9_.-]{1,253}|\[[0-9a-f:.]{2,45}\])(:(?P<port>\d{1,5}))?", re.IGNORECASE)

Network = ipaddress.IPv4Network | ipaddress.IPv6Network


@dataclass(frozen=True, slots=True)
class Visitor:
    """Who asks. `proof` is what the CSRF token is bound to."""

    name: str
    may_operate: bool = False
    proof: str = ""


@dataclass(frozen=True, slots=True)
class AccessRules:
    """The rules of one dashboard. Without a token no session opens, without proxies no header counts."""

    token: str | None
    key: bytes  # signs sessions and CSRF tokens
    hosts: frozenset[str]
    proxies: tuple[Network, ...] = ()
    user_header: str = "x-forwarded-user"
    anonymous: bool = False  # visitors on loopback may look without a session
    read_only: bool = False  # nobody may change anything
    trusted_socket: bool = False  # a request without an address came through a Unix socket that only proxies may open

    @classmethod
    def read(
        cls,
        *,
        token: str | None,
        hosts: Iterable[str],
        trusted_proxies: Iterable[str],
        user_header: str,
        anonymous: bool,
        read_only: bool,
        secret: str,
        trusted_socket: bool = False,
    ) -> AccessRules:
        """The checked rules. `secret` is a random text: the key without a token, for this process only."""
        if token is not None and (not isinstance(token, str) or len(token) < SHORTEST_TOKEN):
            raise InvalidOption("token", "…", f"a secret of at least {SHORTEST_TOKEN} characters, or None")
        if not re.fullmatch(r"[A-Za-z0-9-]{1,64}", user_header):
            raise InvalidOption("user_header", user_header, "the name of an HTTP header")
        return cls(
            token=token,
            key=hashlib.sha256(f"bullpen dashboard {token or secret}".encode()).digest(),
            hosts=frozenset(_host_name(host) for host in _several("hosts", hosts)),
            proxies=tuple(_network(proxy) for proxy in _several("trusted_proxies", trusted_proxies)),
            user_header=user_header.lower(),
            anonymous=anonymous,
            read_only=read_only,
            trusted_socket=trusted_socket,
        )

    # Where a request comes from.

    def accepts_host(self, host: str) -> bool:
        found = _HOST.fullmatch(host)
        return found is not None and found["name"].lower() in self.hosts

    def accepts_origin(self, headers: Mapping[str, str]) -> bool:
        """Whether a request that changes something comes from a page of this very host and port. The scheme is not
        compared, because a proxy may end TLS.
        """
        origin = urlsplit(headers.get("origin", ""))
        same = origin.scheme in ("http", "https") and origin.netloc.lower() == headers.get("host", "").lower()
        return same and headers.get("sec-fetch-site", "same-origin") == "same-origin"

    def visitor(self, peer: str | None, headers: Mapping[str, str], session: str, now: float) -> Visitor | None:
        """Who asks; None if it is a stranger."""
        if self.token is not None and (proof := self._session_id(session, now)) is not None:
            return Visitor("token", not self.read_only, f"session {proof}")
        if self._is_trusted_proxy(peer) and (user := headers.get(self.user_header, "")):
            if len(user) > LONGEST_USER or not user.isprintable():
                return None
            return Visitor(user, not self.read_only, f"user {user}")
        if self.anonymous and is_loopback(peer) and not any(name in headers for name in FORWARDED):
            return Visitor("anonymous")
        return None

    def _is_trusted_proxy(self, peer: str | None) -> bool:
        if peer is None or peer == "":
            return self.trusted_socket
        address = _address(peer)
        return address is not None and any(address in proxy for proxy in self.proxies)

    # Sessions.

    def accepts_token(self, given: str) -> bool:
        return self.token is not None and hmac.compare_digest(
            self._sign(f"token {given}"), self._sign(f"token {self.token}")
        )

    @property
    def cookie(self) -> str:
        """Its name. Dashboards on other ports of this host share their cookies, so each token has its own name."""
        return f"bullpen_{self._sign('cookie')[:12]}"

    def new_session(self, random_id: str, now: float) -> str:
        """The value of the cookie. It is signed with the token, so every process with the same token accepts it."""
        content = f"{random_id}.{int(now) + SESSION_SECONDS}"
        return f"{content}.{self._sign(f'session {content}')}"

    def _session_id(self, session: str, now: float) -> str | None:
        found = _SESSION.fullmatch(session)
        if found is None:
            return None
        expected = self._sign(f"session {found['id']}.{found['until']}")
        return found["id"] if hmac.compare_digest(found["signature"], expected) and now < int(found["until"]) else None

    # CSRF.

    def csrf_token(self, visitor: Visitor) -> str:
        return self._sign(f"csrf {visitor.proof}") if visitor.proof else ""

    def accepts_csrf(self, visitor: Visitor, given: str) -> bool:
        expected = self.csrf_token(visitor)
        return bool(expected) and hmac.compare_digest(given.encode(), expected.encode())

    def _sign(self, text: str) -> str:
        return hmac.new(self.key, text.encode(), hashlib.sha256).hexdigest()


def is_loopback(address: str | None) -> bool:
    found = _address(address)
    return found is not None and found.is_loopback


def _address(text: str | None) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        address = ipaddress.ip_address(text or "")
    except ValueError:
        return None
    mapped = getattr(address, "ipv4_mapped", None)
    return mapped if isinstance(mapped, ipaddress.IPv4Address) else address


def _several(option: str, value: Iterable[str]) -> list[str]:
    found = None if isinstance(value, str) or not isinstance(value, Iterable) else list(value)
    if found is None or not all(isinstance(one, str) for one in found):
        raise InvalidOptionType(option, value, "a list of strings")
    return found


def _host_name(host: str) -> str:
    found = _HOST.fullmatch(host)
    if found is None or found["port"] is not None:
        raise InvalidOption("hosts", host, "names of hosts without a port, such as shop.example.org")
    return found["name"].lower()


def _network(written: str) -> Network:
    try:
        return ipaddress.ip_network(written)
    except ValueError:
        raise InvalidOption(
            "trusted_proxies", written, "addresses or networks, such as 10.0.0.1 or 10.0.0.0/8"
        ) from None
