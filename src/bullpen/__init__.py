"""Bullpen: a bounded pool of warm workers, and a drop-in Executor."""

__version__ = "0.1.0"
from bullpen.pool.pool import Pool  # temporary
