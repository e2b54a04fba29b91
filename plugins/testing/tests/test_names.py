"""Public names and wheel of `detcore_testing`."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from plugin_wheels import CleanEnvironment, detcore_wheel, house_wheels

import detcore_testing


def run(source: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", source], capture_output=True, text=True)


@pytest.mark.parametrize("name", detcore_testing.__all__)
def test_public_names_have_docstrings(name: str) -> None:
    assert getattr(detcore_testing, name).__doc__
    assert name in dir(detcore_testing)


def test_unknown_name_is_an_error() -> None:
    with pytest.raises(AttributeError, match="has no attribute 'TapeSuite'"):
        detcore_testing.TapeSuite  # noqa: B018


def test_stage_does_not_import_pytest() -> None:
    finished = run(
        "import sys, detcore_testing.framework.stage\n"
        "sys.exit(', '.join({'pytest', 'hypothesis'} & sys.modules.keys()) or 0)"
    )
    assert finished.returncode == 0, finished.stderr


def test_suites_reject_python_without_assert() -> None:
    command = [sys.executable, "-O", "-c", "from detcore_testing import StorageSuite"]
    finished = subprocess.run(command, capture_output=True, text=True)
    assert finished.returncode == 1
    assert "Run the tests without -O and unset PYTHONOPTIMIZE." in finished.stderr


def test_wheel_provides_storage_torture(tmp_path: Path) -> None:
    wheels = [detcore_wheel(), detcore_wheel("storage")]
    clean = CleanEnvironment(tmp_path / "environment", wheels)
    torture = ("detcore", "storage", "torture", tmp_path / "store", "--points", 2)
    alone = clean.run(*torture)
    assert (alone.returncode, alone.stdout) == (2, "")
    assert "pip install 'detcore[testing]'" in alone.stderr
    clean.install(*map(str, house_wheels("testing")), "--no-index")
    assert clean.run(*torture).stdout.endswith("nothing was lost\n")
