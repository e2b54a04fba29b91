"""Forwards to `detcore_registry`, which the distribution detcore-registry contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore._distributions import forward_to

if TYPE_CHECKING:
    from detcore_registry import *  # noqa: F403  (type checkers need its names)

__getattr__ = forward_to(
    "detcore_registry", old="detcore.experimental", needed_by="the model registry"
)
