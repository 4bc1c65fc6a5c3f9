"""Users of a Redis server, with the rights that docs/how-to/redis.md names."""

from __future__ import annotations

import re
import secrets
from pathlib import Path
from urllib.parse import urlsplit

from redis import Redis

_PAGE = Path(__file__).parent.parent / "docs/how-to/redis.md"


def documented_rights(prefix: str = "bullpen", *, cluster: bool = False) -> list[str]:
    """The words of `ACL SETUSER` on the page, for another prefix."""
    blocks = re.findall(r"^```text\n(ACL .*?)^```", _PAGE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    lines = "".join(blocks if cluster else blocks[:1]).splitlines()
    words = [word for line in lines for word in line.removeprefix("ACL SETUSER app ").split()]
    return [word.replace("bullpen:", f"{prefix}:") for word in words if word not in ("on", ">password")]


def add_user(url: str, name: str, *rights: str, password: str = "") -> str:
    """Add a user to a server. Returns the address of the server for that user."""
    password = password or secrets.token_hex(8)
    with Redis.from_url(url) as client:
        client.execute_command("ACL", "SETUSER", name, "reset", "on", f">{password}", *rights)
    return urlsplit(url)._replace(netloc=f"{name}:{password}@{urlsplit(url).netloc}").geturl()


def delete_user(url: str, name: str) -> None:
    with Redis.from_url(url) as client:
        client.execute_command("ACL", "DELUSER", name)
