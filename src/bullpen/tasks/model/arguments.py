"""The arguments of a stored task, for people: as plain JSON values by parameter, without secrets.

A value is redacted if the name of its parameter, or of a key that leads to it, is one of the function's `redact`, or
looks like the name of a secret. An argument whose parameter is not known is redacted, too.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from bullpen.tasks.model.annotations import signature_of

REDACTED = "[redacted]"

# Words of a name, in snake_case.
_SECRET = re.compile(
    r"(?:^|_)(?:password|passwd|pwd|passphrase|secret|token|credential|authorization|auth|cookie|cvv|cvc|pin|ssn|iban"
    r"|(?:api|access|private|secret|signing|encryption)_?key|card_?number|session_?id)s?(?:_|$)"
)
_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def looks_secret(name: str) -> bool:
    """`password`, `api_key`, `accessToken`, `X-Auth-Token`."""
    return _SECRET.search(re.sub(r"[^a-z0-9]+", "_", _HUMP.sub("_", name).lower())) is not None


def shown_arguments(
    function: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    redact: Collection[str],
    hidden: list[Any] | None = None,
) -> dict[str, Any]:
    """The arguments by the names of their parameters. The further ones of `*args` are one list. `hidden` gets the
    values that are redacted.
    """
    names = _names(function, len(args))
    found: dict[str, Any] = {}
    for place, value in enumerate(args):
        name = names[place]
        if name is None:
            found[f"args[{place}]"] = REDACTED
            if hidden is not None:
                hidden.append(value)
        elif name.startswith("*"):
            rest = found.setdefault(name.removeprefix("*"), [])
            if rest != REDACTED:
                rest.append(value)
        else:
            found[name] = value
    return {name: _shown(name, value, redact, hidden) for name, value in {**found, **kwargs}.items()}


def _names(function: Callable[..., Any], count: int) -> list[str | None]:
    """The parameters of positional arguments; None where there is none."""
    signature = signature_of(function)
    names: list[str | None] = []
    for parameter in () if signature is None else signature.parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"*{parameter.name}"] * max(count - len(names), 0)
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    return [*names, *[None] * max(count - len(names), 0)]


def _shown(name: str, value: Any, redact: Collection[str], hidden: list[Any] | None) -> Any:
    if name in redact or looks_secret(name):
        if hidden is not None:
            hidden.append(value)
        return REDACTED
    if isinstance(value, Mapping):
        return {key: _shown(str(key), item, redact, hidden) for key, item in value.items()}
    if isinstance(value, list):
        return [_shown("", item, redact, hidden) for item in value]
    return value


# Text that a task writes, such as its log: the same rule, as far as text has names.

SHORTEST_SECRET = 4  # characters; a shorter value is part of too many words
_NAMED = re.compile(r"""(?<![\w.%-])([\w%][\w.%-]*)\\*["']?\s*(?:=>|[=:])\s*""")
_VALUE = re.compile(
    r"""(?:Bearer|Basic|Token)\s+\S+|(\\+["']).*?(?:(?<!\\)\1|$)|"(?:[^"\\]|\\.)*"?|'(?:[^'\\]|\\.)*'?|[^\s,;&)\]}]*""",
    re.DOTALL,
)
_ENCODED = re.compile("%([0-9A-Fa-f]{2})")
_UNENCODED = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789_.-~")
_COOKIES = re.compile(r"""(?!\\+["'])[^"'\r\n]+""")  # cookie=…; cookie=…
_PASSWORD_IN_URL = re.compile(r"""(?<=://)([^\s:/@"']*):[^\s"']*@""")


def secret_texts(
    function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any], redact: Collection[str]
) -> list[str]:
    """The texts and numbers in the arguments that `shown_arguments` redacts, the longest first."""
    hidden: list[Any] = []
    shown_arguments(function, args, kwargs, redact, hidden)
    texts: set[str] = set()
    for value in hidden:  # it grows
        if isinstance(value, Mapping):
            hidden.extend(value.values())
        elif isinstance(value, list):
            hidden.extend(value)
        elif value is not None and not isinstance(value, bool):
            texts.add(str(value))
    forms = {form for text in texts if len(text) >= SHORTEST_SECRET for form in _written(text)}
    return sorted(forms, key=lambda text: (-len(text), text))


def _written(text: str) -> set[str]:
    """How a log may write a text: as it is, as Python, as JSON, or in an address."""
    return {text, repr(text)[1:-1], json.dumps(text)[1:-1], json.dumps(text, ensure_ascii=False)[1:-1], _encoded(text)}


def _encoded(text: str) -> str:
    return "".join(chr(byte) if byte in _UNENCODED else f"%{byte:02X}" for byte in text.encode(errors="surrogatepass"))


def redacted_text(text: str, redact: Collection[str], secrets: Collection[str] = ()) -> str:
    """The text without `secrets`, without values behind names that are redacted (`password=…`, `"token": "…"`), and
    without passwords in addresses.
    """
    parts, end = [], 0
    for found in _NAMED.finditer(text):
        name = _ENCODED.sub(lambda one: chr(int(one[1], 16)), found[1])
        if found.start() >= end and (name in redact or name.rpartition(".")[2] in redact or looks_secret(name)):
            parts += [text[end : found.end()], REDACTED]
            cookies = _COOKIES.match(text, found.end()) if name.lower().endswith("cookie") else None
            value = cookies or _VALUE.match(text, found.end())
            end = found.end() if value is None else value.end()
    text = _PASSWORD_IN_URL.sub(rf"\1:{REDACTED}@", "".join([*parts, text[end:]]))
    for secret in secrets:
        text = text.replace(secret, REDACTED)
    return text
