"""Users of a Redis server, with the rights that docs/how-to/redis.md names."""

from __future__ import annotations

import secrets
from pathlib import Path
from urllib.parse import urlsplit

from redis import Redis

_PAGE = Path(__file__).parent.parent / "docs/how-to/redis.md"


def documented_rights(prefix: str = "bullpen") -> list[str]:
    """The words of `ACL SETUSER` on the page, for another prefix."""
    lines = [line for line in _PAGE.read_text("utf-8").splitlines() if line.startswith("ACL SETUSER app ")]
    words = [word for line in lines for word in line.split()[3:] if not word.startswith((">", "on"))]
    return [word.replace("bullpen:", f"{prefix}:") for word in words]


def add_user(url: str, name: str, *rights: str) -> str:
    """Add a user to a server. Returns the address of the server for that user."""
    password = secrets.token_hex(8)
    with Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", name, "reset", "on", f">{password}", *rights)
    return urlsplit(url)._replace(netloc=f"{name}:{password}@{urlsplit(url).netloc}").geturl()


def delete_user(url: str, name: str) -> None:
    with Redis.from_url(url) as client:
        client.execute_command("ACL", "DELUSER", name)
