"""The parameters of a page, from its address: each is checked and bounded."""

from __future__ import annotations

import math
from collections.abc import Mapping
from urllib.parse import parse_qsl

LONGEST_VALUE = 512  # characters
MOST = 20


class WrongParameter(ValueError):
    """A parameter that no page would send. The message is for people."""


def read_query(query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, max_num_fields=MOST, errors="replace")
    except ValueError:
        raise WrongParameter(f"the address has more than {MOST} parameters") from None
    for name, value in pairs:
        if len(value) > LONGEST_VALUE:
            raise WrongParameter(f"{name[:40]} must have at most {LONGEST_VALUE} characters")
    return dict(pairs)


def one_of(parameters: Mapping[str, str], name: str, allowed: tuple[str, ...]) -> str:
    """The value, "" if it is left out."""
    value = parameters.get(name, "")
    if value and value not in allowed:
        raise WrongParameter(f"{name} must be one of {', '.join(allowed)}")
    return value


def required(form: Mapping[str, str], name: str) -> str:
    value = form.get(name, "")
    if not value or len(value) > LONGEST_VALUE:
        raise WrongParameter(f"{name} must have 1 to {LONGEST_VALUE} characters")
    return value


def instant(parameters: Mapping[str, str], name: str) -> float:
    """In seconds since the epoch."""
    try:
        value = float(parameters.get(name, ""))
    except ValueError:
        value = math.nan
    if math.isnan(value):
        raise WrongParameter(f"{name} must be a number of seconds")
    return value
