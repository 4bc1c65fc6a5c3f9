"""Records: lines per package, the public names, the command line and the HTTP API, as text files in `records/`.

A record changes deliberately. `python -m tests.ratchets.records` writes all of them; `CHANGELOG.md` names the change.
The text is the same on every supported Python.
"""

from __future__ import annotations

import argparse
import enum
import inspect
import io
import json
import re
import runpy
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout, suppress
from pathlib import Path
from types import ModuleType
from typing import Any, get_overloads
from unittest import mock

import bullpen
import bullpen.testing
from tests.ratchets.structure import lines_by_package

FOLDER = Path(__file__).parent / "records"

SPECIAL_METHODS = frozenset(
    "__aenter__ __aexit__ __aiter__ __anext__ __await__ __bool__ __call__ __contains__ __enter__ __exit__ __getitem__ "
    "__iter__ __len__ __next__".split()
)


def lines() -> str:
    return "".join(f"{count:6} {package}\n" for package, count in lines_by_package().items())


def recorded_lines(text: str) -> dict[str, int]:
    return {package: int(count) for count, package in (line.split() for line in text.splitlines())}


def public_names() -> str:
    """Every name that `bullpen` and `bullpen.testing` export, with signatures."""
    blocks = []
    for module in (bullpen, bullpen.testing):
        for name in sorted(module.__all__):
            blocks.append("\n".join(describe(f"{module.__name__}.{name}", getattr(module, name))))
    return "\n\n".join(blocks) + "\n"


def describe(name: str, value: Any) -> Iterator[str]:
    if isinstance(value, type):
        yield from describe_class(name, value)
    elif isinstance(value, ModuleType):
        yield f"module {name}"
    elif inspect.isroutine(value):
        yield from describe_function(name, value)
    else:
        yield f"{name}: {type(value).__name__}"


def describe_class(name: str, cls: type[Any]) -> Iterator[str]:
    bases = ", ".join(base.__name__ for base in cls.__bases__ if base is not object)
    yield f"class {name}" + (f"({bases})" if bases else "")
    if issubclass(cls, enum.Enum):
        yield from (f"    {member.name} = {member.value!r}" for member in cls)
    elif (constructor := signature_of(cls)) is not None:
        yield f"    __init__{constructor}"
    for attribute, value in sorted(public_attributes(cls).items()):
        yield from (f"    {line}" for line in describe_attribute(attribute, value))


def public_attributes(cls: type[Any]) -> dict[str, Any]:
    """What the class and those of its bases that are ours define or annotate."""
    found: dict[str, Any] = {}
    for base in reversed(cls.__mro__):
        if not base.__module__.startswith("bullpen"):
            continue
        found |= {name: Annotated(annotation) for name, annotation in inspect.get_annotations(base).items()}
        for name, value in vars(base).items():
            if not inspect.ismemberdescriptor(value) and not isinstance(found.get(name), Annotated):
                found[name] = value
    return {
        name: value
        for name, value in found.items()
        if (not name.startswith("_") or name in SPECIAL_METHODS) and not isinstance(value, enum.Enum)
    }


class Annotated:
    """An attribute of which only the type is known."""

    def __init__(self, annotation: Any) -> None:
        self.annotation = annotation


def describe_attribute(name: str, value: Any) -> Iterator[str]:
    match value:
        case Annotated():
            yield f"{name}: {spell(value.annotation)}"
        case property(fget=getter) if getter is not None:
            yield f"{name}: {spell(inspect.get_annotations(getter).get('return', '?'))}  (property)"
        case staticmethod() | classmethod():
            yield from describe_function(name, value.__func__, f"{type(value).__name__} ")
        case _ if inspect.isroutine(value):
            yield from describe_function(name, value)
        case type():
            yield f"class {name}"
        case _:
            yield f"{name} = {spell_value(value)}"


def describe_function(name: str, function: Callable[..., Any], kind: str = "") -> Iterator[str]:
    for variant in get_overloads(function) or [function]:
        yield f"{kind}{'async def' if is_async(variant) else 'def'} {name}{signature_of(variant)}"


def is_async(function: Callable[..., Any]) -> bool:
    """As it is written: from Python 3.12 on a plain function can be marked as one that returns a coroutine."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return code is not None and bool(code.co_flags & inspect.CO_COROUTINE)


def signature_of(value: Callable[..., Any]) -> str | None:
    """Spelled here, because `str` of a signature is not the same on every Python."""
    try:
        signature = inspect.signature(value)
    except ValueError:
        return None
    words: list[str] = []
    kind_before = None
    for parameter in signature.parameters.values():
        if kind_before is parameter.POSITIONAL_ONLY and parameter.kind is not parameter.POSITIONAL_ONLY:
            words.append("/")
        if parameter.kind is parameter.KEYWORD_ONLY and kind_before not in (
            parameter.KEYWORD_ONLY,
            parameter.VAR_POSITIONAL,
        ):
            words.append("*")
        words.append(spell_parameter(parameter))
        kind_before = parameter.kind
    if kind_before is inspect.Parameter.POSITIONAL_ONLY:
        words.append("/")
    returns = "" if signature.return_annotation is signature.empty else f" -> {spell(signature.return_annotation)}"
    return f"({', '.join(words)}){returns}"


def spell_parameter(parameter: inspect.Parameter) -> str:
    stars = {"VAR_POSITIONAL": "*", "VAR_KEYWORD": "**"}.get(parameter.kind.name, "")
    annotation = "" if parameter.annotation is parameter.empty else f": {spell(parameter.annotation)}"
    default = "" if parameter.default is parameter.empty else f" = {spell_value(parameter.default)}"
    return f"{stars}{parameter.name}{annotation}{default}"


def spell(annotation: Any) -> str:
    return _without_homes(annotation if isinstance(annotation, str) else inspect.formatannotation(annotation))


def spell_value(value: Any) -> str:
    if isinstance(value, enum.Enum):
        return f"{type(value).__name__}.{value.name}"
    if isinstance(value, type) or inspect.isroutine(value):
        return str(value.__name__)
    if isinstance(value, set | frozenset):
        return f"{{{', '.join(sorted(map(spell_value, value)))}}}"
    return _without_homes(re.sub(r" at 0x[0-9a-f]+", "", repr(value)))


def _without_homes(text: str) -> str:
    """A class that moves to another module is the same class."""
    return re.sub(r"\bbullpen(?:\.\w+)*\.(\w+)", r"\1", text)


def command_line() -> str:
    """What `--help` says of each command, option by option."""
    return "\n\n".join("\n".join(describe_command(parser)) for parser in find_parsers(root_parser())) + "\n"


def root_parser() -> argparse.ArgumentParser:
    """The parser that answers `bullpen --help`."""
    asked: list[argparse.ArgumentParser] = []

    def print_help(parser: argparse.ArgumentParser, file: Any = None) -> None:
        asked.append(parser)

    with (
        mock.patch.object(argparse.ArgumentParser, "print_help", print_help),
        mock.patch.object(sys, "argv", ["bullpen", "--help"]),
        redirect_stdout(io.StringIO()),
        suppress(SystemExit),
    ):
        runpy.run_path(str(Path(bullpen.__file__).with_name("__main__.py")), run_name="__main__")
    return asked[0]


def find_parsers(parser: argparse.ArgumentParser) -> Iterator[argparse.ArgumentParser]:
    yield parser
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            for inner in action.choices.values():
                yield from find_parsers(inner)


def describe_command(parser: argparse.ArgumentParser) -> Iterator[str]:
    yield parser.prog
    yield from (f"    {line}".rstrip() for line in (parser.description or "").splitlines())
    for action in parser._actions:
        if isinstance(action, argparse._SubParsersAction):
            yield f"    commands: {', '.join(action.choices)}"
        elif not isinstance(action, argparse._HelpAction):
            yield f"    {spell_option(action)}"
            if action.help:
                yield f"        {action.help}"
    yield from (f"    {line}".rstrip() for line in (parser.epilog or "").splitlines())


def spell_option(action: argparse.Action) -> str:
    """`-n, --number N`; `[WORD …]` for words that may be left out."""
    name = action.metavar or (f"{{{','.join(map(str, action.choices))}}}" if action.choices else action.dest.upper())
    forms = {"0": "", "?": f"[{name}]", "*": f"[{name} …]", "+": f"{name} …"}
    value = forms.get(str(action.nargs), str(name))
    required = " (required)" if action.option_strings and action.required else ""
    return f"{', '.join(action.option_strings)} {value}".strip() + required


def openapi() -> str:
    """The document that `/api/v1/openapi.json` serves."""
    from bullpen.web.openapi import openapi_document

    return json.dumps(openapi_document(), indent=1, ensure_ascii=False) + "\n"


RECORDS: dict[str, Callable[[], str]] = {
    "lines.txt": lines,
    "public_names.txt": public_names,
    "command_line.txt": command_line,
    "openapi.json": openapi,
}

if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file, text in RECORDS.items():
        (FOLDER / file).write_text(text())
