"""The version of detcore."""

__version__ = "0.1.0"
