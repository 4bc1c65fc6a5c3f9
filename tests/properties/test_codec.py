"""What the codec accepts comes back equal and of the same type; the standard library can read it; nothing breaks it."""

from __future__ import annotations

import dataclasses
import datetime as dt
import decimal
import enum
import json
import uuid
from contextlib import nullcontext
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bullpen.errors import InvalidArgument, InvalidPayload, InvalidResult
from bullpen.tasks.model.codec import MAX_DEPTH, CallCodec


class Colour(enum.StrEnum):
    RED = "red"
    BLUE = "blue"


@dataclasses.dataclass
class Box:
    label: str
    content: Any
    sizes: tuple[float, ...] = ()
    inner: Box | None = None


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=15,
)

DEEP = st.recursive(
    st.sampled_from(['"', "[", "]{", 'a\\"', ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["[", "}", '"']), inner, max_size=2),
    max_leaves=40,
)


# Also what JSON has not: some of it is to be rejected, none of it changed.
ANYTHING = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(st.characters(exclude_categories=()))
    | st.binary()
    | st.decimals()
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.dates()
    | st.timedeltas()
    | st.uuids()
    | st.sampled_from(Colour)
    | st.complex_numbers(),
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text() | st.integers() | st.sampled_from(Colour) | st.booleans(), inner, max_size=4)
        | st.frozensets(st.integers() | st.text(), max_size=3)
        | st.builds(Box, st.text(), inner)
    ),
    max_leaves=15,
)

ANNOTATED: list[tuple[Any, st.SearchStrategy[Any]]] = [
    (int, st.integers()),
    (float, st.floats(allow_nan=False, allow_infinity=False)),
    (str, st.text()),
    (bytes, st.binary()),
    (bool | None, st.booleans() | st.none()),
    (decimal.Decimal, st.decimals(allow_nan=False, allow_infinity=False)),
    (dt.datetime, st.datetimes(min_value=dt.datetime(1, 1, 3))),
    (dt.date, st.dates()),
    (dt.timedelta, st.timedeltas()),
    (uuid.UUID, st.uuids()),
    (Colour, st.sampled_from(Colour)),
    (tuple[int, str], st.tuples(st.integers(), st.text())),
    (frozenset[int], st.frozensets(st.integers())),
    (dict[int, list[dt.date]], st.dictionaries(st.integers(), st.lists(st.dates(), max_size=3), max_size=4)),
    (dict[str, Any], st.dictionaries(st.text(), JSON, max_size=4)),
    (Box, st.builds(Box, st.text(), JSON, st.lists(st.integers().map(float)).map(tuple))),
]


def exactly(value: Any) -> Any:
    """The value with its types, so that 1, 1.0 and True differ; the name of a zone is not kept."""
    if isinstance(value, dict):
        return [(exactly(key), exactly(item)) for key, item in value.items()]
    if isinstance(value, list | tuple):
        return type(value), [exactly(item) for item in value]
    if isinstance(value, Box):
        return Box, [exactly(part) for part in vars(value).values()]
    return type(value), repr(value) if isinstance(value, float | decimal.Decimal) else value


def taking(annotation: Any) -> CallCodec:
    def f(value: Any, *more: Any, **rest: Any) -> Any: ...

    f.__annotations__ = dict.fromkeys(("value", "more", "rest", "return"), annotation)
    return CallCodec(f, "f")


@given(ANYTHING, st.sampled_from([Any, *(annotation for annotation, _ in ANNOTATED)]))
def test_what_is_accepted_comes_back_as_it_was(value: Any, annotation: Any) -> None:
    codec = taking(annotation)
    try:
        payload = codec.encode((value,), {})
    except InvalidArgument as rejected:
        assert rejected.path.startswith("args[0]")  # noqa: PT017 — it may be accepted
        return
    json.loads(payload)
    ((back,), kwargs) = codec.decode(payload)
    assert kwargs == {}
    if annotation is float and type(value) is int:
        assert back == value
    else:
        assert exactly(back) == exactly(value)


@given(st.data())
def test_what_an_annotation_describes_is_accepted(data: st.DataObject) -> None:
    annotation, values = data.draw(st.sampled_from(ANNOTATED))
    args = tuple(data.draw(st.lists(values, min_size=1, max_size=3)))
    kwargs = data.draw(st.dictionaries(st.sampled_from(["a", "b", "ü"]), values, max_size=2))
    codec = taking(annotation)
    back = codec.decode(codec.encode(args, kwargs))
    assert exactly(back) == exactly((args, kwargs))
    assert exactly(codec.decode_result(codec.encode_result(args[0]))) == exactly(args[0])


@given(JSON)
def test_json_is_accepted_without_annotations(value: Any) -> None:
    codec = CallCodec(None, "f")
    payload = codec.encode((value,), {"it": value})
    assert exactly(codec.decode(payload)) == exactly(((value,), {"it": value}))
    assert json.loads(payload) == {"args": [value], "kwargs": {"it": value}}


@given(ANYTHING)
def test_a_result_is_kept_as_it_is_or_rejected(value: Any) -> None:
    codec = taking(Any)
    try:
        data = codec.encode_result(value)
    except InvalidResult as rejected:
        assert rejected.path.startswith("result")  # noqa: PT017 — it may be kept
        return
    assert exactly(codec.decode_result(data)) == exactly(value)


@given(st.binary() | JSON.map(lambda value: json.dumps(value).encode()), st.sampled_from([Any, int, Box, set[int]]))
def test_no_bytes_break_the_decoder(payload: bytes, annotation: Any) -> None:
    codec = taking(annotation)
    for data in (payload, b'{"args":[' + payload + b'],"kwargs":{}}'):
        try:
            codec.decode(data)
        except InvalidPayload:
            pass
    try:
        codec.decode_result(payload)
    except InvalidPayload:
        pass


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return 1 + max(map(depth_of, inner), default=0) if isinstance(value, list | dict) else 0


@given(DEEP, st.integers(MAX_DEPTH - 4, MAX_DEPTH + 4))
def test_the_depth_of_a_payload_is_counted_outside_of_strings(value: Any, around: int) -> None:
    for _ in range(around):
        value = [value, []]
    data = json.dumps(value).encode()
    is_deep = depth_of(value) > MAX_DEPTH
    with pytest.raises(InvalidPayload, match="deeper") if is_deep else nullcontext():
        CallCodec(None, "f").decode_result(data)
