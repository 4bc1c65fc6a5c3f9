"""The docs name every command that the store uses, and no other. Redis knows all of them since 6.2, and Valkey too."""

from __future__ import annotations

import re
from pathlib import Path

from bullpen.tasks.storage import redis
from tests.redis_users import documented_rights

FOLDER = Path(redis.__file__).parent
IN_SCRIPTS = re.compile(r"(?:redis\.p?call|many)\('([A-Z]+)'")
ELSEWHERE = re.compile(
    r"execute(?:_on_all_nodes|_command)?\(\s*\"([A-Z]+)\"|_execute_for_queues\(\w+, \"([A-Z]+)\"|\(\(?\"([A-Z]+)\", "
)
OF_A_CONNECTION = {"PING", "SELECT"}


def test_the_documented_rights_are_the_commands_that_the_store_uses() -> None:
    used = {word for path in FOLDER.rglob("*.lua") for word in IN_SCRIPTS.findall(path.read_text("utf-8"))}
    for path in FOLDER.glob("*.py"):
        used |= {word for words in ELSEWHERE.findall(path.read_text("utf-8")) for word in words if word}
    assert {"EVALSHA", "HSET", "SMEMBERS", "SUBSCRIBE", "TIME", "ZADD"} <= used  # the patterns find commands
    allowed = {word[1:].partition("|")[0].upper() for word in documented_rights() if word.startswith("+")}
    assert used | OF_A_CONNECTION == allowed
