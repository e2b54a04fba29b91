"""Fixtures: experiment files to load and to corrupt."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from detcore.environment import read_environment
from detcore.plugins import PluginManager

HERE = Path(__file__).parent


@pytest.fixture(scope="session")
def models() -> dict[str, Any]:
    """Return the settings of all installed plugins, as the command passes them."""
    return PluginManager(read_environment({"DETCORE_HOME": "/h"})).settings_models()


@pytest.fixture
def constant() -> str:
    return (HERE / "constant.yaml").read_text()
