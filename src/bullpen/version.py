"""The version of Bullpen."""

__version__ = "0.1.0"
