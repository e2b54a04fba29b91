"""Forwards to `detcore_determined.migrate`, which the distribution detcore-determined contains."""

from __future__ import annotations

from detcore._distributions import forward_to

__all__ = ()

__getattr__ = forward_to("detcore_determined.migrate", old="detcore.migrate")
