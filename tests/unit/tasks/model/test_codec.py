"""Arguments and results come back as they are, or are rejected with the path to what would not."""

from __future__ import annotations

import collections
import dataclasses
import datetime as dt
import decimal
import enum
import json
import uuid
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict
from zoneinfo import ZoneInfo

import msgspec
import pydantic
import pytest

from bullpen.errors import InvalidArgument, InvalidPayload, InvalidResult, PayloadTooLarge
from bullpen.tasks.model.codec import MAX_DEPTH, CallCodec
from bullpen.tasks.model.registry import TaskRegistry
from tests.names import name_of

if TYPE_CHECKING:
    from os import PathLike as Unknown


class Colour(enum.Enum):
    RED = "red"


class Size(enum.StrEnum):
    BIG = "big"


class Point(NamedTuple):
    x: int
    y: int


@dataclasses.dataclass
class Line:
    text: str
    extra: Any = None


@dataclasses.dataclass
class Order:
    items: list[Line]
    at: dt.datetime | None = None


class Delivery(msgspec.Struct):
    weight: decimal.Decimal
    tags: set[str] = set()


class Customer(pydantic.BaseModel):
    name: str
    since: dt.date
    points: tuple[int, ...] = ()
    alias: str = pydantic.Field(default="", alias="nick")


class StrictCustomer(pydantic.BaseModel, strict=True):
    since: dt.datetime


class Row(TypedDict):
    id: uuid.UUID


class Text(str):
    pass


class Instant(dt.datetime):
    """As libraries have them that stop the clock."""


def anything(*args, **kwargs):  # type: ignore[no-untyped-def]
    """Without annotations."""


def codec(function: Callable[..., Any], **limits: int) -> CallCodec:
    return CallCodec(function, "f", **limits)


def taking(annotation: Any) -> CallCodec:
    def f(value: Any) -> Any: ...

    f.__annotations__ = {"value": annotation, "return": annotation}
    return codec(f)


def round_trip(annotation: Any, value: Any) -> Any:
    """The value that a worker gets; it has to be the same by name, and as a result."""
    this = taking(annotation)
    ((first,), none) = this.decode(this.encode((value,), {}))
    assert none == {}
    assert this.decode(this.encode((), {"value": value})) == ((), {"value": first})
    assert this.decode_result(this.encode_result(value)) == first
    return first


def rejection(this: CallCodec, *args: Any, **kwargs: Any) -> tuple[str, str]:
    with pytest.raises(InvalidArgument) as caught:
        this.encode(args, kwargs)
    return caught.value.path, caught.value.reason


@pytest.mark.parametrize(
    "value",
    [None, True, 0, -(2**80), 1.5, -0.0, 1e300, "", "ü\0\n", [], [1, [2, {"a": None}]], {"a": {"b": [1.0, False]}}],
    ids=name_of,
)
def test_what_json_has_comes_back_without_annotations(value: Any) -> None:
    for annotation in (Any, object):
        back = round_trip(annotation, value)
        assert back == value
        assert type(back) is type(value)


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (dt.date, dt.date(2024, 2, 29)),
        (dt.datetime, dt.datetime(2024, 1, 1, 12, 0, 0, 1, tzinfo=dt.UTC)),
        (dt.datetime, dt.datetime(2024, 1, 1)),
        (dt.timedelta, dt.timedelta(days=-1, microseconds=3)),
        (uuid.UUID, uuid.UUID(int=7)),
        (bytes, b"\x00\xff"),
        (decimal.Decimal, decimal.Decimal("1.10")),
        (tuple[int, str], (1, "a")),
        (tuple[int, ...], ()),
        (set[int], {1, 2}),
        (frozenset[str], frozenset({"a"})),
        (dict[int, str], {1: "a"}),
        (dict[uuid.UUID, int], {uuid.UUID(int=7): 1}),
        (Colour, Colour.RED),
        (list[Size], [Size.BIG]),
        (Point, Point(1, 2)),
        (Line, Line("a", {"b": [1]})),
        (Order, Order([Line("a"), Line("b")], dt.datetime(2024, 1, 1, tzinfo=dt.UTC))),
        (list[Delivery], [Delivery(decimal.Decimal("0.1"), {"fragile"})]),
        (Delivery | None, None),
        (Row, {"id": uuid.UUID(int=7)}),
        (float | None, 2.5),
        (Customer, Customer(name="a", since=dt.date(2024, 1, 1), points=(1, 2), nick="b")),
        (dict[str, list[Customer]], {"x": [Customer(name="a", since=dt.date(2024, 1, 1))]}),
        (StrictCustomer, StrictCustomer(since=dt.datetime(2024, 1, 1, tzinfo=dt.UTC))),
    ],
    ids=lambda value: name_of(value)[:40],
)
def test_annotations_restore_what_json_has_not(annotation: Any, value: Any) -> None:
    back = round_trip(annotation, value)
    assert back == value
    assert type(back) is type(value)


def test_a_whole_number_is_a_float_where_one_is_wanted() -> None:
    assert type(round_trip(float, 3)) is float
    assert rejection(taking(float), 2**60 + 1)[0] == "args[0]"


def test_a_time_keeps_its_instant_but_not_the_name_of_its_zone() -> None:
    noon = dt.datetime(2024, 7, 1, 12, tzinfo=ZoneInfo("Europe/Berlin"))
    back = round_trip(dt.datetime, noon)
    assert back == noon
    assert back.utcoffset() == dt.timedelta(hours=2)


def test_subclasses_of_dates_come_back_as_plain_ones() -> None:
    back = round_trip(dt.datetime, Instant(2024, 1, 1, 5, tzinfo=dt.UTC))
    assert type(back) is dt.datetime
    assert back == dt.datetime(2024, 1, 1, 5, tzinfo=dt.UTC)


@pytest.mark.parametrize(
    ("value", "path", "reason"),
    [
        ((1, 2), "", "is a tuple, and would come back as a list"),
        ({"a": [1, (2,)]}, "['a'][1]", "is a tuple"),
        ({1: "a"}, "", "has the key 1, an int, which would come back as '1'"),
        ({"a": {1: 1, "1": 2}}, "['a']", "cannot tell apart"),
        ({True: 1}, "", "has the key True"),
        ({None: 1}, "", "has the key None"),
        ([{1, 2}], "[0]", "is a set"),
        (float("nan"), "", "is nan, which JSON has no way to write"),
        ({"a": [float("-inf")]}, "['a'][0]", "is -inf"),
        (b"x", "", "is a bytes"),
        (dt.date(2024, 1, 1), "", "is a datetime.date, and would come back as a str"),
        (uuid.UUID(int=1), "", "uuid.UUID"),
        (decimal.Decimal(1), "", "decimal.Decimal"),
        (decimal.Decimal("sNaN"), "", "decimal.Decimal"),
        ([Colour.RED], "[0]", "annotate it as Colour"),
        ([Size.BIG], "[0]", "annotate it as Size"),  # equal to a string, but not one
        ({Size.BIG: 1}, "", "has the key"),
        (Line("a"), "", "would come back as a dict"),
        (Point(1, 2), "", "Point"),
        (collections.OrderedDict(a=1), "", "pass a plain dict"),
        (Text("a"), "", "pass a plain str"),
        ("\ud800", "", "surrogate"),
        (["a", "\ud800"], "[1]", "surrogate"),
        pytest.param(10**5000, "", "too large", id="a large number"),
        pytest.param({10**5000: 1}, "", "has the key <int>", id="a large key"),
        ({"f": [print]}, "['f'][0]", "cannot be written as JSON"),
        ([1, [object()]], "[1][0]", "is an object"),
        (1 + 2j, "", "is a complex"),
        (range(3), "", "is a range"),
    ],
    ids=lambda value: name_of(value)[:40],
)
def test_what_json_would_change_is_rejected_with_its_path(value: Any, path: str, reason: str) -> None:
    for found in (rejection(codec(anything), 0, value), rejection(taking(Any), value)):
        assert found[0] in (f"args[1]{path}", f"args[0]{path}")
        assert reason in found[1]
    assert rejection(codec(anything), it=value)[0] == f"kwargs['it']{path}"
    with pytest.raises(InvalidResult) as caught:
        taking(Any).encode_result(value)
    assert caught.value.path == f"result{path}"


@pytest.mark.parametrize(
    ("annotation", "value", "path"),
    [
        (int, "1", "args[0]"),
        (int, True, "args[0]"),
        (str, None, "args[0]"),
        (float, float("nan"), "args[0]"),
        (list[float], [1.0, float("inf")], "args[0][1]"),
        (tuple[int, ...], [1], "args[0]"),
        (set[int], frozenset({1}), "args[0]"),
        (dt.datetime, "2024-01-01T00:00:00Z", "args[0]"),
        (str, Size.BIG, "args[0]"),
        (Order, Order([Line("a"), Line("b", (1,))]), "args[0].items[1].extra"),
        (Order, Order([Line("a", {"x": object()})]), "args[0].items[0].extra['x']"),
        (Order, Order([Line(5)]), "args[0].items[0].text"),  # type: ignore[arg-type]
        (Delivery, Delivery(decimal.Decimal("NaN")), "args[0].weight"),
        (Colour, "red", "args[0]"),
    ],
    ids=lambda value: name_of(value)[:40],
)
def test_what_the_annotation_does_not_restore_is_rejected(annotation: Any, value: Any, path: str) -> None:
    assert rejection(taking(annotation), value)[0] == path


def test_the_message_names_the_function_and_the_remedy() -> None:
    def send(to: list[Any]) -> None: ...

    with pytest.raises(InvalidArgument) as caught:
        CallCodec(send, "shop.send").encode(([("a", 1)],), {})
    assert str(caught.value) == (
        "shop.send: args[0][0] is a tuple, and would come back as a list; annotate it as tuple[…], or pass a list"
    )


@pytest.mark.parametrize(
    ("annotation", "value"),
    [
        (Any, ("secret",)),
        (Any, {"a": b"secret"}),
        (decimal.Decimal, "secret"),
        (int, "secret"),
        (set[str], ["secret"]),
        (Colour, "secret"),
        (dt.datetime, "secret"),
        (Line, Line("secret", ("secret",))),
        (Customer, {"name": "secret"}),
        (Any, Text("secret")),
        (Any, "secret\ud800"),
    ],
    ids=name_of,
)
def test_messages_have_no_values(annotation: Any, value: Any) -> None:
    path, reason = rejection(taking(annotation), value)
    assert "secret" not in path + reason


def test_none_is_taken_where_it_is_the_default() -> None:
    def f(value: int = None) -> None: ...  # type: ignore[assignment] # noqa: RUF013

    assert codec(f).decode(codec(f).encode((None,), {})) == ((None,), {})


def unresolvable(path: Unknown[str], when: dt.date) -> None: ...


def test_an_annotation_that_cannot_be_resolved_spoils_only_its_own_parameter() -> None:
    this = codec(unresolvable)
    call = ("x", dt.date(2024, 1, 1))
    assert this.decode(this.encode(call, {})) == (call, {})
    path, reason = rejection(this, (1,), dt.date(2024, 1, 1))
    assert path == "args[0]"
    assert "cannot be resolved" in reason


def test_an_annotation_that_cannot_be_restored_says_so() -> None:
    this = taking(str | dt.datetime)
    assert this.decode(this.encode(("x",), {})) == (("x",), {})
    assert "cannot be restored" in rejection(this, dt.datetime(2024, 1, 1))[1]


def shop(
    a: int, b: str = "x", /, c: float = 0.0, *more: bool, d: tuple[int, ...], e: Any = None, **rest: set[int]
) -> None: ...


@pytest.mark.parametrize(
    ("args", "kwargs"),
    [
        ((1,), {"d": ()}),
        ((1, "y", 2.0, True, False), {"d": (1, 2), "e": [1], "x": {1}, "y": set()}),
        ((1,), {"c": 2.5, "d": (), "b": {1}}),  # `b` is for **rest: it cannot be given by name
    ],
)
def test_every_kind_of_parameter_is_restored(args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    assert codec(shop).decode(codec(shop).encode(args, kwargs)) == (args, kwargs)


@pytest.mark.parametrize(
    ("args", "kwargs", "words"),
    [
        ((), {"d": ()}, "missing a required argument: 'a'"),
        ((1,), {}, "missing a required"),
        ((1,), {"e": 1}, "missing a required"),
        ((1, "x", 1.0), {"c": 2.0, "d": ()}, "multiple values"),
        ((1,), {"d": (), "a": 1}, ""),
    ],
)
def test_arguments_that_do_not_fit_the_function_are_rejected(
    args: tuple[Any, ...], kwargs: dict[str, Any], words: str
) -> None:
    assert words in rejection(codec(shop), *args, **kwargs)[1]


def plain(a: int, b: int = 2, *, c: int = 3) -> None: ...


@pytest.mark.parametrize("count", range(4))
@pytest.mark.parametrize("names", [(), ("a",), ("b",), ("c",), ("d",), ("a", "b"), ("b", "c"), ("a", "b", "c")])
def test_a_call_fits_the_codec_exactly_if_it_fits_the_function(count: int, names: tuple[str, ...]) -> None:
    args, kwargs = (1,) * count, dict.fromkeys(names, 1)
    try:
        plain(*args, **kwargs)
    except TypeError:
        with pytest.raises(InvalidArgument):
            codec(plain).encode(args, kwargs)
    else:
        assert codec(plain).decode(codec(plain).encode(args, kwargs)) == (args, kwargs)


def test_stored_payloads_are_json_of_the_standard_library() -> None:
    payload = taking(Order).encode((Order([Line("ü")], dt.datetime(2024, 1, 1, tzinfo=dt.UTC)),), {})
    item = {"items": [{"text": "ü", "extra": None}], "at": "2024-01-01T00:00:00Z"}
    assert json.loads(payload) == {"args": [item], "kwargs": {}}


def test_arguments_that_are_too_large_are_rejected() -> None:
    this = codec(anything, max_payload=100)
    empty = len(this.encode(("",), {}))
    assert this.encode(("x" * (100 - empty),), {})
    with pytest.raises(PayloadTooLarge) as caught:
        this.encode(("x" * (101 - empty),), {})
    assert (caught.value.size, caught.value.limit) == (101, 100)


def nested(levels: int) -> Any:
    value: Any = []
    for _ in range(levels - 1):
        value = [value]
    return value


def test_a_payload_that_is_nested_too_deep_is_rejected() -> None:
    round_trip(Any, nested(MAX_DEPTH - 2))
    assert "deep" in rejection(codec(anything), nested(MAX_DEPTH + 1))[1]
    assert "deep" in rejection(codec(anything), nested(100_000))[1]
    itself: list[Any] = []
    itself.append(itself)
    assert rejection(codec(anything), itself) == ("args[0]", "contains itself, or is nested too deep")
    round_trip(Any, "[{" * 1000)  # brackets in a string are no levels
    round_trip(Any, [[], {}] * 1000)
    round_trip(Any, [{"\\": "]"}, {'"[': []}] * 100)


def test_the_limits_hold_for_arguments_that_are_only_shown() -> None:
    this = codec(anything, max_payload=100)
    payload = this.encode(("x",), {})
    assert this.decode_plain(payload) == (("x",), {})
    with pytest.raises(InvalidPayload, match="101 bytes, and max_payload is 100"):
        this.decode_plain(payload.ljust(101))
    deep = payload.replace(b'"x"', b"[" * (MAX_DEPTH + 1) + b"]" * (MAX_DEPTH + 1))
    with pytest.raises(InvalidPayload, match="deeper"):
        codec(anything).decode_plain(deep)


@pytest.mark.parametrize(
    "damaged", [b"[" * 100 + b'"' + b'\\"' * 500_000, b"[" * 100 + b'"\\' * 500_000, b"[" * 70 + b'"\\"' * 500_000]
)
def test_a_damaged_payload_is_read_once(damaged: bytes) -> None:
    """It would take hours if each quote were read to the end of the payload."""
    with pytest.raises(InvalidPayload):
        codec(anything).decode(damaged)


def test_unbalanced_brackets_are_no_json() -> None:
    for damaged in (b"]" * 200 + b"[" * 60, b"[]" * 100 + b"[", b"{]" * 100):
        with pytest.raises(InvalidPayload, match="no JSON"):
            codec(anything).decode_result(damaged)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xff",
        b"[]",
        b"{}",
        b'{"args":1,"kwargs":{}}',
        b'{"args":[],"kwargs":{}}',
        b'{"args":["x"],"kwargs":{}}',
        b'{"args":[1],"kwargs":{"z":1}}',
        b'{"args":[1,2,3],"kwargs":{}}',
        b'{"args":[1],"kwargs":[]}',
        b'{"args":[1],"kwargs":{}',
        b"[" * 100_000,
        b'{"args":' + b"[" * 200 + b"]" * 200 + b"}",
    ],
)
def test_damaged_payloads_are_rejected_by_name(payload: bytes) -> None:
    with pytest.raises(InvalidPayload):
        codec(plain).decode(payload)


def test_a_damaged_payload_says_where() -> None:
    with pytest.raises(InvalidPayload) as caught:
        taking(Order).decode(b'{"args":[{"items":[{"text":"a"},{"text":5}]}],"kwargs":{}}')
    assert caught.value.path == "args[0].items[1].text"


def test_stored_data_that_a_model_rejects_is_a_damaged_payload() -> None:
    with pytest.raises(InvalidPayload) as caught:
        taking(list[Customer]).decode(b'{"args":[[{"name":"a","since":"secret"}]],"kwargs":{}}')
    assert caught.value.path == "args[0][0]"
    assert "rejected by Customer: since: Input should be a valid date" in caught.value.reason
    assert "secret" not in str(caught.value)


def test_a_damaged_result_is_rejected_by_name() -> None:
    with pytest.raises(InvalidPayload) as caught:
        taking(list[int]).decode_result(b'[1,"x"]')
    assert caught.value.path == "result[1]"


def test_a_result_that_cannot_be_kept_is_dropped_with_a_reason() -> None:
    def f() -> Any: ...

    definition = TaskRegistry(max_result=10).register(f, name="f")
    assert definition.keep_result([1]) == (b"[1]", "")
    assert definition.keep_result("x" * 9) == (None, "result is 11 bytes, and at most 10 are kept")
    kept, reason = definition.keep_result({"a": (1,)})
    assert kept is None
    assert reason.startswith("result['a'] is a tuple")

    class Rude(list[Any]):
        def __iter__(self) -> Any:
            raise SystemError

    assert definition.keep_result(Rude([1]))[0] is None


def test_a_function_that_is_not_known_here_takes_what_json_has() -> None:
    this = CallCodec(None, "elsewhere.f")
    assert this.decode(this.encode((1, "a"), {"x": [None]})) == ((1, "a"), {"x": [None]})
    assert rejection(this, (1,))[0] == "args[0]"
    assert this.decode_result(b'{"a":1}') == {"a": 1}
