"""Replay steps of a trial, and find where two runs part."""

__version__ = "0.1.0"

__all__ = ["__version__"]
