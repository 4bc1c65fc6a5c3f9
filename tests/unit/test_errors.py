"""Errors are values: they can be copied and sent to another process, and say the same there."""

from __future__ import annotations

import copy
import inspect
import multiprocessing
import pickle
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from typing import Any, NoReturn

import pytest

import bullpen
from bullpen.errors import BullpenError, DeadlineExceeded

EXAMPLES = {
    "str": "worker-3",
    "int": 3,
    "float": 1.5,
    "bool": True,
    "object": ["thing"],
    "tuple[str, ...]": ("a", "b"),
    "Iterable[str]": ("a", "b"),
}


def all_kinds(root: type[BullpenError] = BullpenError) -> list[type[BullpenError]]:
    """Every error there is in the package, its root included."""
    kinds = [root] if root.__module__.startswith(f"{bullpen.__name__}.") else []
    return kinds + [kind for child in root.__subclasses__() for kind in all_kinds(child)]


KINDS = sorted(set(all_kinds()), key=lambda kind: kind.__name__)


def example(kind: type[BullpenError]) -> BullpenError:
    """An error of this kind, with something in every field."""
    if not inspect.isfunction(kind.__init__):
        return kind("what went wrong")
    args, fields = [], {}
    for parameter in inspect.signature(kind.__init__).parameters.values():
        if parameter.name != "self":
            value = EXAMPLES[parameter.annotation.split(" |")[0]]
            if parameter.kind is inspect.Parameter.KEYWORD_ONLY:
                fields[parameter.name] = value
            else:
                args.append(value)
    return kind(*args, **fields)


def test_all_kinds_are_found() -> None:
    assert len(KINDS) > 20
    assert {bullpen.PoolSaturated, bullpen.DeadlineExceeded, bullpen.NotCallable} < set(KINDS)


@pytest.mark.parametrize("kind", KINDS, ids=lambda kind: kind.__name__)
@pytest.mark.parametrize(
    "send",
    [lambda error: pickle.loads(pickle.dumps(error)), copy.copy, copy.deepcopy],
    ids=["pickle", "copy", "deepcopy"],
)
def test_an_error_says_the_same_when_it_arrives(kind: type[BullpenError], send: Callable[[Any], Any]) -> None:
    error = example(kind)
    error.add_note("seen in the press")
    arrived = send(error)
    assert type(arrived) is kind
    assert (str(arrived), arrived.args) == (str(error), error.args)
    assert vars(arrived) == vars(error)


def give_up() -> NoReturn:
    raise DeadlineExceeded(seconds=2.0, ran=True)


def test_an_error_comes_out_of_a_process_pool() -> None:
    with ProcessPoolExecutor(1, multiprocessing.get_context("spawn")) as processes:
        error = processes.submit(give_up).exception()
    assert isinstance(error, DeadlineExceeded)
    assert (error.seconds, error.ran, str(error)) == (2.0, True, "timeout of 2 s passed while it ran")
