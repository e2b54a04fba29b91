"""The command of trials that ``create(local=False)`` sends to a server."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

import pytest

from detcore import Trial
from detcore.client.printing_listener import PrintingListener
from detcore.client.remote_experiment import _checked as checked_command
from detcore.client.remote_experiment import _entrypoint
from detcore.errors import ConfigError, InvalidExperimentError


@pytest.fixture
def context(tmp_path: Path) -> Path:
    """A folder that is uploaded, and a script above it."""
    folder = tmp_path / "context"
    (folder / "scripts").mkdir(parents=True)
    (folder / "scripts" / "train.py").write_text("")
    (tmp_path / "outside.py").write_text("")
    return folder


def test_a_script_is_named_from_the_folder(context: Path) -> None:
    inside = "scripts/train.py"
    assert checked_command([inside, "--lr", "1"], context) == [inside, "--lr", "1"]
    assert checked_command([str(context / inside)], context) == [inside]


@pytest.mark.parametrize("script", ["train.py", "scripts", "../outside.py", "/outside.py"])
def test_a_script_that_is_not_in_the_folder_is_refused(context: Path, script: str) -> None:
    with pytest.raises(ConfigError, match=f"there is no script {script!r} in {context}"):
        checked_command([script], context)


def test_a_script_above_the_folder_is_refused_by_its_absolute_name(context: Path) -> None:
    with pytest.raises(ConfigError, match="there is no script"):
        checked_command([str(context.parent / "outside.py")], context)


def test_a_command_without_a_script_is_refused(context: Path) -> None:
    with pytest.raises(ConfigError, match=r"command is \[\]"):
        checked_command([], context)


@pytest.fixture
def script_class(context: Path, monkeypatch: pytest.MonkeyPatch) -> type[Trial]:
    """A trial class of the script ``scripts/train.py``, which is run with an option."""
    script = ModuleType("__main__")
    script.__file__ = str(context / "scripts" / "train.py")
    monkeypatch.setitem(sys.modules, "script_that_is_run", script)
    monkeypatch.setattr(sys, "argv", ["train.py", "--fast"])
    return type("Net", (Trial,), {"__module__": "script_that_is_run"})


def test_a_script_outside_of_the_folder_is_refused(
    context: Path, script_class: type[Trial]
) -> None:
    other = context / "other"
    other.mkdir()
    with pytest.raises(InvalidExperimentError, match="is not below the folder that is uploaded"):
        _entrypoint(script_class, None, other, PrintingListener())


def test_a_command_that_is_given_comes_before_the_script(
    context: Path, script_class: type[Trial]
) -> None:
    command = ["scripts/train.py", "--slow"]
    found = _entrypoint(script_class, command, context, PrintingListener())
    assert found == ["python3", *command]
