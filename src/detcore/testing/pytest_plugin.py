"""Forwards to `detcore_testing.pytest_plugin`, for a ``conftest.py`` that names this module."""

from __future__ import annotations

pytest_plugins = ["detcore_testing.pytest_plugin"]
