"""Pages with commands that a reader types: all of them are typed, and show what the page shows."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from tests.docs.markdown import ROOT, pages
from tests.docs.walkthrough import Mismatch, Walkthrough

WALKED = [page for page in pages() if "<!-- terminal:" in page.read_text()]


@pytest.mark.timeout(300)  # many interpreters, one after the other
@pytest.mark.parametrize("page", WALKED, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_page_can_be_followed(page: Path, tmp_path: Path) -> None:
    if "$ curl" in page.read_text() and shutil.which("curl") is None:
        pytest.skip("there is no curl")
    assert Walkthrough(tmp_path).follow(page.read_text()) > 0


# The follower, tested.

PAGE = """\
<!-- file: hello.py -->
```python
import uuid
print("hello")
```

<!-- append: hello.py -->
```python
print("pid 77")
print("id", "01a1e38c-ad58-7387-9adc-03208057632b")
```

<!-- placeholder: 4711 = \\d+ -->
<!-- terminal: one -->
```console
$ python hello.py
hello
pid 4711
id 00000000-0000-7000-8000-000000000000
$ echo 4711 00000000-0000-7000-8000-000000000000
77 01a1...7632b
```

<!-- terminal: one -->
<!-- ends-with: 3 -->
```console
$ export SOMETHING=else
$ sh -c 'echo $SOMETHING; exit 3'
else
```

```console
$ not typed
```
"""


def test_files_are_written_and_commands_typed(tmp_path: Path) -> None:
    assert Walkthrough(tmp_path).follow(PAGE) == 4


@pytest.mark.parametrize(
    ("right", "wrong", "said"),
    [
        ("hello\npid", "hullo\npid", "line 16: $ python hello.py\nExpected"),
        ("77 01a1", "78 01a1", "line 16: $ echo"),
        ("ends-with: 3", "ends-with: 4", "exit code 3"),
    ],
)
def test_what_is_not_so_is_found(tmp_path: Path, right: str, wrong: str, said: str) -> None:
    with pytest.raises(Mismatch, match=said.replace("$", r"\$")):
        Walkthrough(tmp_path).follow(PAGE.replace(right, wrong))
