"""Forwards to `detcore_testing`, the suites for authors of plugins.

Tests that were written for ``detcore.testing`` run as before; new ones import `detcore_testing`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore._distributions import forward_to

if TYPE_CHECKING:
    from detcore_testing import *  # noqa: F403  (type checkers need its names)

__getattr__ = forward_to("detcore_testing", old="detcore.testing")
