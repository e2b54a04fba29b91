"""Experiment files to read and to spoil."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from detcore.config import ExperimentFileError, load_config
from detcore.environment import read_environment
from detcore.hooks import PluginManager

HERE = Path(__file__).parent

Write = Callable[..., Path]
Report = Callable[..., ExperimentFileError]


@pytest.fixture(scope="session")
def models() -> dict[str, Any]:
    """Return the settings of all installed plugins, as the command passes them."""
    return PluginManager(read_environment({"DETCORE_HOME": "/h"})).settings_models()


@pytest.fixture
def complete() -> str:
    return (HERE / "complete.yaml").read_text()


@pytest.fixture
def constant() -> str:
    return (HERE / "constant.yaml").read_text()


@pytest.fixture
def write(tmp_path: Path) -> Write:
    def write(text: str | bytes, name: str = "exp.yaml") -> Path:
        path = tmp_path / name
        path.write_bytes(text.encode() if isinstance(text, str) else text)
        return path

    return write


@pytest.fixture
def report(write: Write) -> Report:
    """Load a wrong file and return the error."""

    def report(text: str | bytes, **settings: object) -> ExperimentFileError:
        with pytest.raises(ExperimentFileError) as caught:
            load_config(write(text), **settings)  # type: ignore[arg-type]
        return caught.value

    return report
