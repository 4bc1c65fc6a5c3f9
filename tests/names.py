"""Names of parameters that are the same in every process, as runs on several of them need."""

from __future__ import annotations

import re

ADDRESS = re.compile(r" at 0x[0-9a-f]+")


def name_of(value: object) -> str:
    """Its `repr` without addresses: for `ids=`."""
    return ADDRESS.sub("", repr(value))
