"""Which failures belong together."""

from __future__ import annotations

import json
from collections.abc import Callable

from bullpen.tasks.worker.fingerprint import LENGTH, fingerprint_of, place_of_error


def raised(function: Callable[[], object]) -> BaseException:
    try:
        function()
    except BaseException as error:
        return error
    raise AssertionError("it raised nothing")


def fails_in_a_library() -> None:
    json.loads("{")


def fails_here(message: str = "no") -> None:
    raise ValueError(message)


def test_the_place_is_the_last_frame_of_own_code() -> None:
    place, where = place_of_error(raised(fails_in_a_library))
    assert place == "worker/test_fingerprint.py fails_in_a_library"
    line = fails_in_a_library.__code__.co_firstlineno + 1
    assert where == f"worker/test_fingerprint.py:{line} in fails_in_a_library"


def test_an_error_without_own_frames_has_the_place_where_it_was_raised() -> None:
    error = raised(lambda: json.loads("{"))
    assert error.__traceback__ is not None
    foreign = error.with_traceback(error.__traceback__.tb_next.tb_next)  # type: ignore[union-attr]
    assert "json/" in place_of_error(foreign)[0]


def test_an_error_that_was_not_raised_has_no_place() -> None:
    assert place_of_error(ValueError()) == place_of_error(None) == ("", "")


def test_a_fingerprint_depends_on_the_function_the_error_and_the_place() -> None:
    same = fingerprint_of("f", "ValueError", "a.py send")
    assert len(same) == LENGTH
    assert same == fingerprint_of("f", "ValueError", "a.py send")
    others = [("g", "ValueError", "a.py send"), ("f", "KeyError", "a.py send"), ("f", "ValueError", "b.py send")]
    assert same not in {fingerprint_of(*other) for other in others}
    assert fingerprint_of("\udc80", "E")


def test_messages_make_no_difference() -> None:
    one, other = (place_of_error(raised(lambda text=text: fails_here(text))) for text in ("a", "b"))  # type: ignore[misc]
    assert one == other
