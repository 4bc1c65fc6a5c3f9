"""The fingerprint of a failure: failures of one function with the same type of error and the same place share it.

The place is the last frame of the traceback in the user's own code: neither in the standard library, nor in an
installed package, nor in Bullpen. Its line number is not part of the fingerprint, so an edit elsewhere in the file does
not start another group.
"""

from __future__ import annotations

import hashlib
import sysconfig
from pathlib import Path, PurePath
from types import TracebackType

from bullpen.tasks.model.task import writable

LENGTH = 12  # hexadecimal digits

_INSTALLED = ("site-packages", "dist-packages")
_FOREIGN = tuple(
    {
        str(Path(__file__).parents[2]),
        *(path for name in ("stdlib", "platstdlib") if (path := sysconfig.get_path(name)) is not None),
    }
)


def fingerprint_of(function: str, error: str, place: str = "") -> str:
    """`error`: the type of the error, or its kind if it has no type."""
    told = "\0".join((function, error, place))
    return hashlib.sha256(told.encode(errors="backslashreplace")).hexdigest()[:LENGTH]


def place_of_error(error: BaseException | None) -> tuple[str, str]:
    """The last own frame, for the fingerprint (`shop/mail.py send`) and for people (`shop/mail.py:42 in send`)."""
    frame = None if error is None else _last_own_frame(error.__traceback__)
    if frame is None:
        return "", ""
    code = frame.tb_frame.f_code
    name = getattr(code, "co_qualname", code.co_name)
    file = "/".join(PurePath(code.co_filename).parts[-2:])
    return writable(f"{file} {name}"), writable(f"{file}:{frame.tb_lineno} in {name}")


def _last_own_frame(traceback: TracebackType | None) -> TracebackType | None:
    own = last = None
    while traceback is not None:
        last = traceback
        if _is_own(traceback.tb_frame.f_code.co_filename):
            own = traceback
        traceback = traceback.tb_next
    return own or last


def _is_own(filename: str) -> bool:
    return not filename.startswith(_FOREIGN) and not any(part in filename for part in _INSTALLED)
