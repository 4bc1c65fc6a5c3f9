from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from bullpen import InvalidArgument, TaskQueue, UnknownTask
from bullpen.cli.command import CommandError
from bullpen.cli.commands.enqueue import find, fitting, read

queue = TaskQueue("memory://")


@queue.task(name="shop.mail.send")
def send(to: str, times: int = 1, on: date | None = None, **more: Any) -> None: ...


@queue.task(name="shop.other.pack")
def pack() -> None: ...


@queue.task(name="shop.mail.pack")
def pack_mail() -> None: ...


@pytest.mark.parametrize(
    ("words", "call"),
    [
        (["ada"], (["ada"], {})),
        (["7", "times=7"], (["7"], {"times": 7})),
        (["ada", "2", "2026-01-31"], (["ada", 2, date(2026, 1, 31)], {})),
        (["to=7", "tags=[1, 2]", "note=a=b"], ([], {"to": "7", "tags": [1, 2], "note": "a=b"})),
        (['"quoted"', "on=null"], (["quoted"], {"on": None})),
    ],
)
def test_words_become_what_the_function_takes(words: list[str], call: object) -> None:
    assert fitting(send.definition, read(words)) == call


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "missing a required argument: 'to'"),
        (["ada", "many"], r"args\[1\] does not fit: expected `int`, got `str`"),
        (["ada", "true"], r"args\[1\] does not fit: expected `int`, got `bool`"),
        (["ada", "on=soon"], r"kwargs\['on'\] does not fit: invalid RFC3339 encoded date"),
        (["a", "1", "2026-01-31", "b"], "too many positional arguments"),
    ],
)
def test_words_that_do_not_fit_are_rejected(words: list[str], said: str) -> None:
    with pytest.raises(InvalidArgument, match=said):
        fitting(send.definition, read(words))


def test_positions_stand_before_names() -> None:
    with pytest.raises(CommandError, match="positional argument 'b' follows keyword arguments"):
        read(["a=1", "b"])


def test_the_end_of_a_name_will_do() -> None:
    assert find(queue, "send") is send.definition
    assert find(queue, "shop.mail.pack") is pack_mail.definition
    with pytest.raises(CommandError, match=r"'pack' is ambiguous: shop.mail.pack or shop.other.pack"):
        find(queue, "pack")
    with pytest.raises(UnknownTask, match=r"did you mean 'shop.mail.send'\?"):
        find(queue, "sned")
