"""Ratchets: figures that may only fall (`bounds.py`), and records that change deliberately (`records/`)."""
