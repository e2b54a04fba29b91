"""Forwards to `detcore_testing.torture`, which stops processes at their checkpoint operations."""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_testing.torture import *  # noqa: F403  (type checkers need its names)

if importlib.util.find_spec("detcore_testing") is None:
    raise ImportError(
        "Crash points are tried by the distribution detcore-testing, which is not installed.\n"
        '  pip install "detcore[testing]"'
    )


def __getattr__(name: str) -> object:
    return getattr(importlib.import_module("detcore_testing.torture"), name)
