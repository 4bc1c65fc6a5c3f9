"""The tokens of the HTTP API: a file with one line for each token.

    ci read,enqueue 9f86d081…(SHA-256, 64 digits) 2026-11-18T12:00:00Z

A token is 256 random bits, so its plain SHA-256 tells nothing about it; the token itself is printed once and kept
nowhere. The dashboard looks at the file again when it has changed. A file that another user can change, or that cannot
be read, lets no token in.
"""

from __future__ import annotations

import fcntl
import hashlib
import hmac
import logging
import os
import re
import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Literal, get_args

from bullpen.errors import ConfigurationError, InvalidOption
from bullpen.escaping import escape
from bullpen.trusted_files import why_untrusted

Scope = Literal["read", "operate", "enqueue"]
SCOPES: tuple[Scope, ...] = get_args(Scope)
PREFIX = "bullpen_"  # so that people and scanners recognize a token
LARGEST_FILE = 1 << 20
NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")

_LINE = re.compile(
    rf"(?P<name>{NAME.pattern}) (?P<scopes>[a-z,]+) (?P<digest>[0-9a-f]{{64}}) (?P<created>[0-9TZ:-]{{20}})"
)

logger = logging.getLogger("bullpen.web")


@dataclass(frozen=True, slots=True)
class ApiToken:
    """A line of the file."""

    name: str
    scopes: tuple[Scope, ...]
    digest: str
    created: str

    def __str__(self) -> str:
        return f"{self.name} {','.join(self.scopes)} {self.digest} {self.created}"


class TokenFile:
    """A file of tokens. Readers see the old content or the new one, whole."""

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = Path(path)
        self._seen: tuple[int, ...] | None = ()  # nothing yet
        self._tokens: tuple[ApiToken, ...] = ()

    # The server.

    def find(self, given: str) -> ApiToken | None:
        """The token with this text. Its digest is compared with all of them, each in constant time."""
        digest = _digest(given)
        found = None
        for token in self._current():
            if hmac.compare_digest(token.digest, digest):
                found = token
        return found

    def _current(self) -> Sequence[ApiToken]:
        seen = self._look()
        if seen != self._seen:
            self._seen, self._tokens = seen, ()
            try:
                self._tokens = tuple(self.read())
            except ConfigurationError as error:
                logger.error("no API token is accepted: %s", escape(str(error)))
        return self._tokens

    def _look(self) -> tuple[int, ...] | None:
        """What changes with the file; None without one."""
        try:
            found = os.stat(self.path)
        except OSError:
            return None
        return (found.st_ino, found.st_mtime_ns, found.st_ctime_ns, found.st_size)

    def read(self) -> list[ApiToken]:
        """All tokens. Raises ConfigurationError if the file is missing, wrong, or others can change it."""
        if reason := why_untrusted(self.path):
            raise self._wrong(f"{reason}; let only its owner write it")
        try:
            with self.path.open("rb") as file:
                written = file.read(LARGEST_FILE + 1)
        except OSError as error:
            raise self._wrong(f"it cannot be read ({error.strerror or error})") from None
        if len(written) > LARGEST_FILE:
            raise self._wrong(f"it has more than {LARGEST_FILE} bytes")
        lines = written.decode(errors="backslashreplace").splitlines()
        found = [self._token(number, line) for number, line in enumerate(lines, 1) if line and not line.startswith("#")]
        if len({token.name for token in found}) < len(found):
            raise self._wrong("two tokens have the same name")
        return found

    def _token(self, number: int, line: str) -> ApiToken:
        found = _LINE.fullmatch(line)
        scopes = tuple(scope for scope in SCOPES if found is not None and scope in found["scopes"].split(","))
        if found is None or ",".join(sorted(scopes)) != ",".join(sorted(found["scopes"].split(","))):
            raise self._wrong(f"line {number} is no token; make tokens with `bullpen tokens create`")
        return ApiToken(found["name"], scopes, found["digest"], found["created"])

    def _wrong(self, reason: str) -> ConfigurationError:
        return ConfigurationError(reason, source=f"the tokens file {self.path}")

    # The command line.

    def create(self, name: str, scopes: Sequence[Scope]) -> str:
        """Add a token, and return its text."""
        if NAME.fullmatch(name) is None:
            raise InvalidOption("name", name, "at most 64 letters, digits, '_', '-' and '.'")
        text = PREFIX + secrets.token_urlsafe(32)
        now = f"{datetime.now(UTC):%Y-%m-%dT%H:%M:%SZ}"
        token = ApiToken(name, tuple(scope for scope in SCOPES if scope in scopes), _digest(text), now)

        def add(tokens: list[ApiToken]) -> list[ApiToken]:
            if any(other.name == name for other in tokens):
                raise InvalidOption("name", name, "a new one: the file has a token with this name; revoke it first")
            return [*tokens, token]

        self._change(add)
        return text

    def revoke(self, name: str) -> bool:
        """Remove a token. False if there is none with this name."""
        removed = False

        def remove(tokens: list[ApiToken]) -> list[ApiToken]:
            nonlocal removed
            removed = any(token.name == name for token in tokens)
            return [token for token in tokens if token.name != name]

        if self.path.exists():
            self._change(remove)
        return removed

    def _change(self, change: Callable[[list[ApiToken]], list[ApiToken]]) -> None:
        try:
            with self._locked():
                tokens = change(self.read())
                fresh = self.path.with_name(f".{self.path.name}.{secrets.token_hex(4)}")
                lines = ["# API tokens of Bullpen; see `bullpen tokens --help`", *map(str, tokens)]
                with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                    file.write("\n".join(lines) + "\n")
                    file.flush()
                    os.fsync(file.fileno())
                os.replace(fresh, self.path)
        except OSError as error:
            raise self._wrong(f"it cannot be written ({error.strerror or error})") from None

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Only one process changes the file. The lock is on the file that has the name, which a writer replaces."""
        while True:
            descriptor = os.open(self.path, os.O_RDWR | os.O_CREAT, 0o600)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX)
                if os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                    yield
                    return
            finally:
                os.close(descriptor)


def _digest(text: str) -> str:
    return hashlib.sha256(text.encode(errors="surrogatepass")).hexdigest()
