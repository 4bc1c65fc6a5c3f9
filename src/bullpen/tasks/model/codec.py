"""How arguments and results become bytes: JSON, which the standard library reads too.

An accepted value comes back equal, and with the same type. JSON has no tuples, sets, bytes, dates or classes, and only
strings as keys; the annotations of the function say which types to restore. The codec rejects any other value before it
is stored, and names its path: `args[0].items[3] is a tuple, and would come back as a list`.

Three small changes are accepted: an int for a parameter of type `float` becomes a float, a datetime keeps its offset
but not the name of its zone, and a subclass of a date, UUID or Decimal becomes the base class.

For strings, ints, bools and None, the codec checks only the type. It writes every other value and reads it back, which
is the only proof that the value survives.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NoReturn

import msgspec

from bullpen.errors import InvalidArgument, InvalidPayload, InvalidResult, InvalidTask, PayloadTooLarge
from bullpen.tasks.model.annotations import Annotations, signature_of
from bullpen.tasks.model.inject import Dependency, dependency_of
from bullpen.tasks.model.json_roundtrip import find_difference, find_nan, find_unwritable, write, write_unknown

MAX_PAYLOAD = 256 * 1024
MAX_RESULT = 256 * 1024
MAX_DEPTH = 64
_REMEMBERED = 100

Arguments = tuple[tuple[Any, ...], dict[str, Any]]

_PLAIN: frozenset[Any] = frozenset({str, int, bool, type(None)})  # these survive JSON; finite floats do too


class _DecodedCall(msgspec.Struct):
    args: Sequence[Any]
    kwargs: Mapping[str, Any]


class _WrittenCall(msgspec.Struct):
    args: list[msgspec.Raw]
    kwargs: dict[str, msgspec.Raw]


_encode = msgspec.json.Encoder(enc_hook=write_unknown).encode
_read_plain_call = msgspec.json.Decoder(_DecodedCall).decode
_read_call = msgspec.json.Decoder(_WrittenCall).decode


LATER = msgspec.Raw(b"null")
"""The placeholder of an argument that is not known yet: the result of another task."""


def fill(payload: bytes, place: str, value: bytes) -> bytes:
    """Replace `LATER` by an encoded argument; `place` is its position or its name."""
    call = _read_call(payload)
    if place.isdecimal():
        call.args[int(place)] = msgspec.Raw(value)
    else:
        call.kwargs[place] = msgspec.Raw(value)
    return _encode(call)


class CallCodec:
    """Encodes and decodes the arguments and results of a function; of an unknown function without annotations."""

    def __init__(
        self,
        function: Callable[..., Any] | None,
        name: str,
        *,
        max_payload: int = MAX_PAYLOAD,
        max_result: int = MAX_RESULT,
    ) -> None:
        self.name = name
        self.max_payload = max_payload
        self.max_result = max_result
        self._function = function
        self._known: _Shape | None = None

    @property
    def _shape(self) -> _Shape:
        """Made on first use, when all names in annotations are defined."""
        if self._known is None:
            self._known = _Shape(self._function, self.name)
        return self._known

    @property
    def dependencies(self) -> Mapping[str, Dependency]:
        """The parameters that are injected."""
        return (self._known or self._shape).dependencies

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> bytes:
        """The arguments of one call. Raises InvalidArgument or PayloadTooLarge."""
        shape = self._known or self._shape
        try:
            if not kwargs and (tuple(map(type, args)) in shape.plain_calls or shape.is_plain(args)):
                payload = _encode(_DecodedCall(args, kwargs))
            else:
                problem = shape.misfit(args, kwargs)
                if problem is not None:
                    raise InvalidArgument(problem, function=self.name, path="")
                payload = _encode(_DecodedCall(shape.write_positions(args), shape.write_names(kwargs)))
        except (_Rejected, UnicodeEncodeError, ValueError):
            self._reject(args, kwargs)
        if len(payload) > self.max_payload:
            raise PayloadTooLarge(function=self.name, size=len(payload), limit=self.max_payload)
        return payload

    def _reject(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NoReturn:
        """Find the argument that cannot be encoded, after encoding has failed."""
        kinds = self._shape.of_positions(len(args))
        for number, (kind, value) in enumerate(zip(kinds, args, strict=False)):
            kind.check(value, f"args[{number}]", lambda path, why: InvalidArgument(why, function=self.name, path=path))
        for key, value in kwargs.items():
            self._shape.of_name(key).check(
                value, f"kwargs[{key!r}]", lambda path, why: InvalidArgument(why, function=self.name, path=path)
            )
        raise InvalidArgument("the arguments cannot be written as JSON", function=self.name, path="")

    def decode(self, payload: bytes) -> Arguments:
        """Decode the arguments of a call. Raises InvalidPayload for any invalid bytes."""
        shape = self._known or self._shape
        path = ""
        try:
            _limit_depth(payload)
            args_of_usual_call = shape.read_usual_call(payload)
            if args_of_usual_call is not None:
                return args_of_usual_call, {}
            call = _read_call(payload)
            args = []
            for number, (kind, raw) in enumerate(zip(shape.of_positions(len(call.args)), call.args, strict=False)):
                path = f"args[{number}]"
                args.append(kind.read(raw))
            kwargs = {}
            for key, raw in call.kwargs.items():
                path = f"kwargs[{key!r}]"
                kwargs[key] = shape.of_name(key).read(raw)
        except (msgspec.MsgspecError, _Rejected, ValueError, TypeError, RecursionError) as error:
            where, why = _locate(error, path)
            raise InvalidPayload(why, function=self.name, path=where) from None
        problem = shape.misfit(call.args, call.kwargs)
        if problem is not None:
            raise InvalidPayload(problem, function=self.name, path="")
        return tuple(args), kwargs

    def decode_plain(self, payload: bytes) -> Arguments:
        """The arguments of a call as JSON has them: no class of the application is made. Raises InvalidPayload."""
        if len(payload) > self.max_payload:
            raise self.too_large(payload)
        try:
            _limit_depth(payload)
            call = _read_plain_call(payload)
        except (msgspec.MsgspecError, _Rejected, ValueError, RecursionError) as error:
            raise InvalidPayload(str(error), function=self.name, path="") from None
        return tuple(call.args), dict(call.kwargs)

    def too_large(self, payload: bytes) -> InvalidPayload:
        """The error for a stored payload that is larger than `max_payload`: another program has written it."""
        why = f"the arguments are {len(payload)} bytes, and max_payload is {self.max_payload}"
        return InvalidPayload(why, function=self.name, path="")

    def encode_result(self, value: Any) -> bytes:
        """Encode a result. Raises InvalidResult."""
        kind = (self._known or self._shape).result
        try:
            data = _encode(value) if type(value) in kind.plain else bytes(kind.write(value))
        except (_Rejected, UnicodeEncodeError, ValueError):
            kind.check(value, "result", lambda path, why: InvalidResult(why, function=self.name, path=path))
            raise InvalidResult("cannot be written as JSON", function=self.name, path="result") from None
        if len(data) > self.max_result:
            why = f"is {len(data)} bytes, and at most {self.max_result} are kept"
            raise InvalidResult(why, function=self.name, path="result")
        return data

    def decode_result(self, data: bytes) -> Any:
        """Decode a result. Raises InvalidPayload."""
        try:
            _limit_depth(data)
            return (self._known or self._shape).result.read(data)
        except (msgspec.MsgspecError, _Rejected, ValueError, TypeError, RecursionError) as error:
            where, why = _locate(error, "result")
            raise InvalidPayload(why, function=self.name, path=where) from None


class _Shape:
    """The parameters of a function, with a codec for each."""

    def __init__(self, function: Callable[..., Any] | None, name: str) -> None:
        self._positions: list[_ValueCodec] = []
        self._plains: list[frozenset[Any]] = []  # of the positions
        self.plain_calls: set[tuple[type, ...]] = set()  # the types of arguments that were found to be plain
        self._names: dict[str, _ValueCodec] = {}
        self._more_positions: _ValueCodec | None = None
        self._more_names: _ValueCodec | None = None
        self.result = _ANYTHING
        self._position_names: list[str] = []  # "" for positional-only parameters
        self._required = 0
        self._required_names: set[str] = set()
        self._usual_call: Callable[[bytes], Any] | None = None
        self.dependencies: dict[str, Dependency] = {}  # injected parameters, which are not enqueued
        self._signature = None if function is None else signature_of(function)
        if function is None or self._signature is None:
            self._more_positions = self._more_names = _ANYTHING
            return
        annotations = Annotations(function)
        self._signature = self._without_injected(self._signature, annotations, name)
        resolve = _resolver(annotations)
        for parameter in self._signature.parameters.values():
            self._add(parameter, resolve(parameter.annotation, parameter.default))
        self.result = resolve(self._signature.return_annotation, inspect.Parameter.empty)
        if not self._required_names:
            self._usual_call = _decoder_of_call(self._positions)

    def _without_injected(self, signature: inspect.Signature, annotations: Annotations, name: str) -> inspect.Signature:
        kept = []
        for parameter in signature.parameters.values():
            dependency = dependency_of(parameter, annotations)
            if dependency is not None:
                self.dependencies[parameter.name] = dependency
                continue
            by_position = parameter.kind not in (parameter.KEYWORD_ONLY, parameter.VAR_KEYWORD)
            before = next((one for one in self.dependencies if by_position and _is_by_position(signature, one)), None)
            if before is not None:
                why = f"its parameter {before!r} is injected and stands before {parameter.name!r}; put it last, after *"
                raise InvalidTask(why, function=name)
            kept.append(parameter)
        return signature.replace(parameters=kept) if self.dependencies else signature

    def _add(self, parameter: inspect.Parameter, kind: _ValueCodec) -> None:
        required = parameter.default is parameter.empty
        match parameter.kind:
            case parameter.VAR_POSITIONAL:
                self._more_positions = kind
            case parameter.VAR_KEYWORD:
                self._more_names = kind
            case parameter.KEYWORD_ONLY:
                self._names[parameter.name] = kind
                if required:
                    self._required_names.add(parameter.name)
            case _:
                self._positions.append(kind)
                self._plains.append(kind.plain)
                self._required += required
                by_name = parameter.kind is not parameter.POSITIONAL_ONLY
                self._position_names.append(parameter.name if by_name else "")
                if by_name:
                    self._names[parameter.name] = kind

    def is_plain(self, args: Sequence[Any]) -> bool:
        """Whether the arguments fit, and every value is of a plain type: the fast path."""
        if not self._required <= len(args) <= len(self._plains) or self._required_names:
            return False
        for plain, value in zip(self._plains, args, strict=False):
            if type(value) not in plain:
                return False
        if len(self.plain_calls) < _REMEMBERED:
            self.plain_calls.add(tuple(map(type, args)))
        return True

    def misfit(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        """Why the arguments do not fit the function; None if they fit."""
        if self._signature is None or self._fits(len(args), kwargs):
            return None
        for name in self.dependencies:
            if name in kwargs:
                return f"{name!r} is injected by the worker, and is not enqueued"
        try:
            self._signature.bind(*args, **kwargs)
        except TypeError as error:
            return f"the arguments do not fit {self._signature}: {error}"
        return None

    def _fits(self, count: int, kwargs: Mapping[str, Any]) -> bool:
        """A quick version of `Signature.bind`. False if in doubt."""
        if count > len(self._positions) and self._more_positions is None:
            return False
        if not kwargs:
            return count >= self._required and not self._required_names
        given = self._position_names[:count]
        for name in kwargs:
            if name in given or name in self.dependencies:
                return False
            if name not in self._names and self._more_names is None:
                return False
        for name in self._position_names[count : self._required]:
            if name not in kwargs:
                return False
        return self._required_names <= kwargs.keys()

    def write_positions(self, args: Sequence[Any]) -> Sequence[Any]:
        """Each value as it is, if its type is plain, else as JSON."""
        return [
            value if type(value) in kind.plain or value is LATER else kind.write(value)
            for kind, value in zip(self.of_positions(len(args)), args, strict=False)
        ]

    def write_names(self, kwargs: Mapping[str, Any]) -> dict[str, Any]:
        return {
            key: value if type(value) in kind.plain or value is LATER else kind.write(value)
            for key, kind, value in ((key, self.of_name(key), value) for key, value in kwargs.items())
        }

    def read_usual_call(self, payload: bytes) -> tuple[Any, ...] | None:
        """The arguments, if every positional one is given and no other; else None."""
        if self._usual_call is None:
            return None
        try:
            call = self._usual_call(payload)
        except Exception:  # another kind of call, or damaged: the slow path decides
            return None
        return None if call.kwargs else call.args

    def of_positions(self, count: int) -> Sequence[_ValueCodec]:
        if count <= len(self._positions):
            return self._positions
        more = self._more_positions or _ANYTHING
        return [*self._positions, *[more] * (count - len(self._positions))]

    def of_name(self, name: str) -> _ValueCodec:
        return self._names.get(name) or self._more_names or _ANYTHING


class _Rejected(Exception):
    """A value does not survive; `CallCodec` then finds its path."""


class _ValueCodec:
    """The codec of one annotation. `plain`: types with values that survive as they are."""

    __slots__ = ("_decode", "_note", "_takes_floats", "annotation", "plain")

    def __init__(self, annotation: Any = Any, note: str = "") -> None:
        self._note = note
        try:
            self._decode = msgspec.json.Decoder(annotation, dec_hook=_read_unknown).decode
        except (TypeError, ValueError, RecursionError, NameError) as error:
            self._note = f"its annotation cannot be restored: {error}"
            annotation = Any
            self._decode = msgspec.json.Decoder().decode
        self.annotation = annotation
        members = _members(annotation)
        self.plain = _PLAIN if Any in members or object in members else _PLAIN & members
        self._takes_floats = not members.isdisjoint({Any, object, float})

    def write(self, value: Any) -> msgspec.Raw:
        """The value as JSON, if it survives."""
        if type(value) is float and self._takes_floats and value - value == 0.0:
            return msgspec.Raw(_encode(value))
        data = write(value)
        if data is None:
            raise _Rejected
        try:
            _limit_depth(data)
            restored = self._decode(data)
        except (msgspec.MsgspecError, ValueError, TypeError, RecursionError):
            raise _Rejected from None
        if find_difference(value, restored) is not None:
            raise _Rejected
        return msgspec.Raw(data)

    def read(self, raw: Any) -> Any:
        return self._decode(raw)

    def check(self, value: Any, path: str, error: Callable[[str, str], Exception]) -> None:
        """Raise `error(path, reason)` if the value does not survive."""
        found = self._problem(value, path)
        if found is not None:
            where, why = found
            raise error(where, f"{why} ({self._note})" if self._note else why)

    def _problem(self, value: Any, path: str) -> tuple[str, str] | None:
        data = write(value)
        if data is None:
            return find_unwritable(value, path, MAX_DEPTH)
        try:
            _limit_depth(data)
            restored = self._decode(data)
        except (msgspec.MsgspecError, _Rejected, ValueError, TypeError, RecursionError) as error:
            return find_nan(value, path) or _locate(error, path)
        change = find_difference(value, restored)
        return None if change is None else (path + change[0], change[1])


def _decoder_of_call(kinds: Sequence[_ValueCodec]) -> Callable[[bytes], Any] | None:
    """Reads all positional arguments at once, which is faster than one by one."""
    try:
        args: Any = tuple.__class_getitem__(tuple(kind.annotation for kind in kinds))
        call = msgspec.defstruct("_UsualCall", [("args", args), ("kwargs", dict[str, msgspec.Raw])])
        return msgspec.json.Decoder(call, dec_hook=_read_unknown).decode
    except (TypeError, ValueError, RecursionError):
        return None


def _is_by_position(signature: inspect.Signature, name: str) -> bool:
    return signature.parameters[name].kind is not inspect.Parameter.KEYWORD_ONLY


def _resolver(annotations: Annotations) -> Callable[[Any, Any], _ValueCodec]:
    """A function from an annotation to its codec."""
    known: dict[Any, _ValueCodec] = {}

    def resolve(annotation: Any, default: Any) -> _ValueCodec:
        if annotation is inspect.Parameter.empty:
            return _ANYTHING
        try:
            found = annotations.resolve(annotation)
        except Exception as error:
            return _ValueCodec(note=f"its annotation {annotation!r} cannot be resolved: {error}")
        if default is None:
            found = found | None if found is not Any else found
        try:
            if found not in known:
                known[found] = _ValueCodec(found)
            return known[found]
        except TypeError:  # an annotation that has no hash
            return _ValueCodec(found)

    return resolve


def _members(annotation: Any) -> frozenset[Any]:
    """The types that a union consists of; of any other annotation, itself."""
    if isinstance(annotation, types.UnionType) or typing.get_origin(annotation) is typing.Union:
        return frozenset().union(*map(_members, typing.get_args(annotation)))
    if annotation is None:
        return frozenset({type(None)})
    try:
        return frozenset({annotation})
    except TypeError:
        return frozenset()


def _read_unknown(kind: Any, value: Any) -> Any:
    """Decode types that msgspec does not know: pydantic models, and types that are only checked."""
    validate = getattr(kind, "model_validate_json", None)
    if validate is not None:
        try:
            return validate(_encode(value))
        except ValueError as error:
            raise ValueError(_rejection_of_model(kind, error)) from None
    if isinstance(kind, type) and isinstance(value, kind):
        return value
    raise TypeError(f"cannot be restored as {getattr(kind, '__qualname__', kind)}")


def _rejection_of_model(kind: Any, error: ValueError) -> str:
    """The message of pydantic, without the values that it quotes."""
    try:
        found = error.errors(include_url=False, include_context=False, include_input=False)  # type: ignore[attr-defined]
        said = "; ".join(f"{'.'.join(map(str, one['loc']))}: {one['msg']}" for one in found[:3])
    except Exception:  # another library with the same method
        said = type(error).__name__
    return f"Rejected by {kind.__qualname__}: {said}"


_QUOTED_VALUE = re.compile(r"^(Invalid .*?value) .*", re.DOTALL)
# A string to its end, also if that is missing: so each byte is read once.
_STRING = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"?', re.DOTALL)
_AS_SQUARE = bytes.maketrans(b"{}", b"[]")
_NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))


def _limit_depth(data: Any) -> None:
    """Raises ValueError for JSON that is nested deeper than MAX_DEPTH. The time is linear in the size of `data`."""
    if type(data) is not bytes:
        data = bytes(data)
    if data.count(b"[") + data.count(b"{") <= MAX_DEPTH:
        return
    brackets = _STRING.sub(b"", data).translate(_AS_SQUARE, _NO_BRACKETS)
    for _ in range(MAX_DEPTH):  # each turn removes the innermost level
        left = brackets.replace(b"[]", b"")
        if len(left) == len(brackets):
            break
        brackets = left
    if brackets.count(b"[") > (0 if b"[]" in brackets else MAX_DEPTH):  # what is unbalanced is no JSON
        raise ValueError(f"is nested deeper than {MAX_DEPTH} levels")


def _locate(error: BaseException, path: str) -> tuple[str, str]:
    """Where and why a value could not be read: msgspec says so at the end of its messages."""
    if isinstance(error, RecursionError):
        return path, f"is nested deeper than {MAX_DEPTH} levels"
    why, _, where = str(error).partition(" - at `$")
    if isinstance(error, msgspec.ValidationError):
        why = _QUOTED_VALUE.sub(r"\1", why)
        why = f"does not fit: {why[0].lower()}{why[1:]}"
    elif isinstance(error, msgspec.DecodeError):
        why = f"is no JSON: {why}" if path else f"the arguments are no JSON: {why}"
    return path + where.rstrip("`"), why


_ANYTHING = _ValueCodec()
