"""Test the trial command that ``create(local=False)`` sends to a server."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from detcore import Trial
from detcore.client.printing_listener import PrintingListener
from detcore.client.remote_experiment import _check_command, _make_entrypoint
from detcore.errors import ConfigError, InvalidExperimentError


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """An uploaded folder, and a script above it."""
    folder = tmp_path / "context"
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "train.py").write_text("")
    (tmp_path / "outside.py").write_text("")
    return folder


def test_script_is_relative_to_directory(context: Path) -> None:
    inside = "scripts/train.py"
    assert _check_command([inside, "--lr", "1"], context) == [inside, "--lr", "1"]
    assert _check_command([str(context / inside)], context) == [inside]


@pytest.mark.parametrize("script", ["train.py", "scripts", "../outside.py", "/outside.py"])
def test_missing_script_is_rejected(context: Path, script: str) -> None:
    with pytest.raises(ConfigError, match=f"has no script {script!r}"):
        _check_command([script], context)


def test_script_above_directory_is_rejected(context: Path) -> None:
    with pytest.raises(ConfigError, match="has no script"):
        _check_command([str(context.parent / "outside.py")], context)


def test_empty_command_is_rejected(context: Path) -> None:
    with pytest.raises(ConfigError, match=r"command is \[\]"):
        _check_command([], context)


@pytest.fixture
def script_class(context: Path, monkeypatch: pytest.MonkeyPatch) -> type[Trial]:
    """A trial class of the script ``scripts/train.py``, which runs with an option."""
    script = ModuleType("__main__")
    script.__file__ = str(context / "scripts" / "train.py")
    monkeypatch.setitem(sys.modules, "script_that_is_run", script)
    monkeypatch.setattr(sys, "argv", ["train.py", "--fast"])
    return type("Net", (Trial,), {"__module__": "script_that_is_run"})


def test_script_outside_directory_is_rejected(context: Path, script_class: type[Trial]) -> None:
    other = context / "other"
    other.mkdir()
    with pytest.raises(InvalidExperimentError, match="is not in the uploaded directory"):
        _make_entrypoint(script_class, None, other, PrintingListener())


def test_command_replaces_script(context: Path, script_class: type[Trial]) -> None:
    command = ["scripts/train.py", "--slow"]
    entrypoint = _make_entrypoint(script_class, command, context, PrintingListener())
    assert entrypoint == ["python3", *command]
