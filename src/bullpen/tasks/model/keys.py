"""Keys made from the arguments of a call: `unique_key="report:{user_id}"` on a function."""

from __future__ import annotations

import inspect
import string
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from bullpen.errors import InvalidArgument, InvalidOption
from bullpen.tasks.model.options import MAX_KEY, TaskOptions

TEMPLATES = ("unique_key", "concurrency_key")

_formatter = string.Formatter()


class KeyTemplates:
    """The key templates of one function. They are checked against its parameters when the task is registered. A key
    that is given with `using` replaces the template for that call.
    """

    def __init__(self, function: Callable[..., Any], name: str, templates: Mapping[str, str]) -> None:
        self._name = name
        self._templates = templates
        self._signature = inspect.signature(function)
        parameters = self._signature.parameters.values()
        names = [one.name for one in parameters if one.kind not in (one.VAR_POSITIONAL, one.VAR_KEYWORD)]
        for option, template in templates.items():
            for field in _fields(option, template):
                if field not in names:
                    allowed = f"a template of the parameters of {name}, which are {', '.join(names) or 'none'}"
                    raise InvalidOption(option, template, allowed)

    def without(self, options: TaskOptions) -> KeyTemplates | None:
        """The templates that the options of a call do not replace."""
        left = {name: text for name, text in self._templates.items() if getattr(options, name) is text}
        if len(left) == len(self._templates):
            return self
        kept = object.__new__(KeyTemplates)
        kept._name, kept._signature, kept._templates = self._name, self._signature, left
        return kept if left else None

    def of_call(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, str]:
        """The keys of one call, by the names of the options. The arguments fit the function."""
        bound = self._signature.bind(*args, **kwargs)
        bound.apply_defaults()
        keys = {}
        for option, template in self._templates.items():
            try:
                key = template.format(**bound.arguments)
                key.encode()
            except Exception as error:  # __format__ of an argument may raise anything
                why = f"cannot be put into {option}={template!r}: {type(error).__name__}"
                raise InvalidArgument(why, function=self._name, path="the arguments") from error
            if not 1 <= len(key) <= MAX_KEY:
                why = f"make a key of {len(key)} characters of {option}={template!r}; it may have 1 to {MAX_KEY}"
                raise InvalidArgument(why, function=self._name, path="the arguments")
            keys[option] = key
        return keys


def templates_of(function: Callable[..., Any], name: str, options: TaskOptions) -> KeyTemplates | None:
    """The keys among the options of a function that contain a field."""
    keys = {option: getattr(options, option) for option in TEMPLATES}
    found = {option: key for option, key in keys.items() if key is not None and ("{" in key or "}" in key)}
    return KeyTemplates(function, name, found) if found else None


def _fields(option: str, template: str) -> list[str]:
    """The parameters that a template names: `order` in `{order.id}`."""
    fields = []
    try:
        for _, field, form, _ in _formatter.parse(template):
            if field is not None:
                fields.append(field.replace("[", ".").split(".")[0])
                fields += _fields(option, form or "")
    except ValueError as error:
        allowed = f"a template such as 'report:{{user_id}}', with {{{{ for a plain brace ({error})"
        raise InvalidOption(option, template, allowed) from None
    return fields
