"""How many options a pool takes."""

from __future__ import annotations

import inspect
from typing import Any, get_args, get_type_hints

from bullpen.pools import options


def option_names(cls: type[Any]) -> list[str]:
    """The parameters of the constructor. `**options: Unpack[T]` stands for every key of `T`."""
    names: list[str] = []
    for parameter in inspect.signature(cls).parameters.values():
        if parameter.kind is inspect.Parameter.VAR_KEYWORD:
            (group,) = get_args(get_type_hints(cls.__init__, localns=vars(options))[parameter.name])
            names += group.__annotations__
        else:
            names.append(parameter.name)
    return names
