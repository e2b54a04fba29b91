"""Tests that the versions of all distributions are set together."""

from __future__ import annotations

import re
import shutil
from pathlib import Path

import pytest
from set_version import set_version
from source_tree import ROOT


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """Return a copy of the files that contain versions."""
    for pattern in ("pyproject.toml", "src/*/version.py", "plugins/*/pyproject.toml"):
        for path in ROOT.glob(pattern):
            _copy(path, tmp_path)
    for path in ROOT.glob("plugins/*/src/*/__init__.py"):
        _copy(path, tmp_path)
    return tmp_path


def _copy(path: Path, target: Path) -> None:
    new = target / path.relative_to(ROOT)
    new.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy(path, new)


def test_all_distributions_get_the_version(copy: Path) -> None:
    set_version(copy, "3.4.5")
    contents = [path.read_text() for path in copy.rglob("pyproject.toml")]
    assert len(contents) == 14
    for content in contents:
        assert 'version = "3.4.5"' in content
        for requirement in re.findall(r'"detcore[a-z-]*[<>=].*?"', content):
            assert requirement.endswith('>=3.4,<3.5"')
    modules = [*copy.rglob("__init__.py"), copy / "src/detcore/version.py"]
    assert len([path for path in modules if '"3.4.5"' in path.read_text()]) == 14


def test_invalid_version_changes_nothing(copy: Path) -> None:
    with pytest.raises(SystemExit, match=r"'new' is not a version such as 0\.2\.0"):
        set_version(copy, "new")
    assert (copy / "pyproject.toml").read_bytes() == (ROOT / "pyproject.toml").read_bytes()
