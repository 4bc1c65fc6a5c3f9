from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture(autouse=True)
def logging_as_before() -> Iterator[None]:
    """A command that runs a worker configures the log of its process: here that is the log of all later tests."""
    loggers = [logging.getLogger(), logging.getLogger("bullpen")]
    before = [(logger, logger.level, logger.handlers[:]) for logger in loggers]
    yield
    for logger, level, handlers in before:
        logger.setLevel(level)
        logger.handlers[:] = handlers
    logging.captureWarnings(False)
