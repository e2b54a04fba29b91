"""Forwards to `detcore_testing.pytest_plugin`, for a ``conftest.py`` that names this module."""

from __future__ import annotations

from detcore._distributions import import_distribution

import_distribution("detcore_testing", needed_by="detcore.testing.pytest_plugin")

pytest_plugins = ["detcore_testing.pytest_plugin"]
