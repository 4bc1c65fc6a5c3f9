"""What every test runs under: the leak check, the lock-order checker and a Hypothesis profile."""

from __future__ import annotations

import os

import pytest
from hypothesis import settings

from bullpen.testing import lock_order

pytest_plugins = ["pytester", "tests.leaks"]

lock_order.install()

settings.register_profile("default", deadline=None, max_examples=100, stateful_step_count=40)
settings.register_profile("ci", deadline=None, max_examples=200, stateful_step_count=50, print_blob=True)
settings.register_profile("thorough", deadline=None, max_examples=5000, stateful_step_count=100, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="search much longer: thousands of examples and schedules")


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("thorough"):
        settings.load_profile("thorough")


@pytest.fixture
def anyio_backend() -> str:
    """`@pytest.mark.anyio` tests run on asyncio, each on a loop of its own."""
    return "asyncio"


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether `--thorough` was given: then a search may take minutes."""
    return bool(request.config.getoption("thorough"))
