"""Forwards to `detcore_testing.torture`, which stops processes at their checkpoint operations."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore._distributions import forward_to

if TYPE_CHECKING:
    from detcore_testing.torture import *  # noqa: F403  (type checkers need its names)

__getattr__ = forward_to("detcore_testing.torture", old="detcore.checkpoint.torture")
