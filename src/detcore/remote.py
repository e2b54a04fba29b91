"""Forwards to `detcore_remote`, which the distribution detcore-remote contains."""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore._distributions import forward_to

if TYPE_CHECKING:
    from detcore_remote import *  # noqa: F403  (type checkers need its names)

__getattr__ = forward_to(
    "detcore_remote", old="detcore.remote", needed_by="asking a server (--master, DETCORE_MASTER)"
)
