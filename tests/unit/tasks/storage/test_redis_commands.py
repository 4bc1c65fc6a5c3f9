"""Only commands that Redis knows since 6.2, and Valkey as well."""

from __future__ import annotations

import re
from pathlib import Path

from bullpen.tasks.storage import redis

FOLDER = Path(redis.__file__).parent
IN_SCRIPTS = re.compile(r"(?:redis\.p?call|many)\('([A-Z]+)'")
ELSEWHERE = re.compile(
    r"execute(?:_to_each)?\(\s*\"([A-Z]+)\"|_execute_for_queues\(\w+, \"([A-Z]+)\"|execute_command\(\"([A-Z]+)\""
)
COMMON = set(
    """
    CONFIG DEL EVAL EVALSHA EXISTS HDEL HEXISTS HGET HINCRBY HLEN HMGET HSET HSETNX HVALS INFO PUBLISH PUBSUB
    SADD SCARD SMEMBERS SREM TIME ZADD ZCARD ZCOUNT ZRANGE ZRANGEBYLEX ZRANGEBYSCORE ZREM ZREMRANGEBYSCORE ZSCORE
    """.split()
)


def test_every_command_is_one_that_all_servers_know() -> None:
    said = {word for path in FOLDER.rglob("*.lua") for word in IN_SCRIPTS.findall(path.read_text("utf-8"))}
    for path in FOLDER.glob("*.py"):
        said |= {word for words in ELSEWHERE.findall(path.read_text("utf-8")) for word in words if word}
    assert {"EVALSHA", "HSET", "SMEMBERS", "TIME", "ZADD"} <= said  # they are found at all
    assert said <= COMMON
