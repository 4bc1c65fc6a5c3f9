from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.stores import KINDS, new_store


@pytest.fixture(params=KINDS)
def address(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """An empty store. For servers only: `@pytest.mark.parametrize("address", SERVERS, indirect=True)`."""
    with new_store(request.param, tmp_path, request) as url:
        yield url
