"""What every test runs under: the leak check, the lock-order checker and a Hypothesis profile."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Generator

import pytest
import uvloop
from hypothesis import settings

from bullpen.pools.runtimes.process import forkserver_client
from tests.names import ADDRESS
from tests.tools import lock_order

pytest_plugins = ["pytester", "tests.leaks", "tests.servers"]
pytest.register_assert_rewrite("bullpen.testing.contracts", "bullpen.testing.storage_contract")

# The tests start Python thousands of times: where nothing keeps what is compiled, that alone is a third of their time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

for name in ("COLUMNS", "LINES"):  # pytest-xdist sets them; commands would fit their tables to them
    os.environ.pop(name, None)

uvloop.new_event_loop().close()  # the first one opens descriptors that stay open

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:  # so does a shell that starts the tests in the background
    signal.signal(signal.SIGINT, signal.default_int_handler)
lock_order.install()
forkserver_client.LINGER = 0.05  # the leak check waits for the forkserver

settings.register_profile("default", deadline=None, max_examples=100, stateful_step_count=40, print_blob=True)
settings.register_profile("thorough", settings.get_profile("default"), max_examples=5000, stateful_step_count=100)
settings.load_profile("default")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--thorough", action="store_true", help="search much longer: thousands of examples and schedules")


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "thorough: runs with --thorough only")
    if config.getoption("thorough"):
        settings.load_profile("thorough")


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    if not config.getoption("thorough"):
        items[:] = [item for item in items if item.get_closest_marker("thorough") is None]
    for item in items:
        if ADDRESS.search(item.nodeid):
            raise pytest.UsageError(f"{item.nodeid}: an address is never twice the same; use ids=tests.names.name_of")


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A test may log half a character, which does not get from one process of a run to another."""
    report = yield
    report.sections = [
        (name, text.encode("utf-8", "backslashreplace").decode("utf-8")) for name, text in report.sections
    ]
    return report


@pytest.fixture
def anyio_backend() -> str:
    """`@pytest.mark.anyio` tests run on asyncio, each on a loop of its own."""
    return "asyncio"


@pytest.fixture(scope="session")
def thorough(request: pytest.FixtureRequest) -> bool:
    """Whether `--thorough` was given: then a search may take minutes."""
    return bool(request.config.getoption("thorough"))
