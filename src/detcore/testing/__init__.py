"""Forwards to `detcore_testing`, the suites for authors of plugins; imports nothing else.

Tests that were written for ``detcore.testing`` run as before; new ones import `detcore_testing`.
"""

from __future__ import annotations

import importlib
import importlib.util
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from detcore_testing import *  # noqa: F403  (type checkers need its names)

if importlib.util.find_spec("detcore_testing") is None:
    raise ImportError(
        "detcore.testing needs the distribution detcore-testing, which is not installed.\n"
        "It brings pytest and hypothesis, so that detcore itself does without them.\n"
        '  pip install "detcore[testing]"'
    )


def __getattr__(name: str) -> object:
    return getattr(importlib.import_module("detcore_testing"), name)
