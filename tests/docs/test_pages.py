"""Tests that each block runs, for pages of the current environment.

The bare session runs the pages that need no framework; the others run the pages that name them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import pytest
from doc_blocks import environment_of, name_of, pages
from source_tree import ROOT

SUPPORT = ROOT / "tests" / "support"


# Pages that take minutes run one at a time.
LONG = {
    "docs/client.md",
    "docs/testing.md",
    "examples/core_api/README.md",
    "examples/digits_estimator/README.md",
    "examples/plugins/detcore-sklearn/README.md",
    "examples/ray/README.md",
}


def _has(distribution: str) -> bool:
    try:
        return bool(version(distribution))
    except PackageNotFoundError:
        return False


def _environments() -> set[str]:
    """Return the names in `doc_blocks.ENVIRONMENTS` that match this interpreter."""
    if _has("torch"):
        return {"torch"}
    if _has("tensorflow-estimator"):
        return {"estimator"}
    return {"keras", "estimator-latest"} if _has("detcore-keras") else {"bare"}


def _pages_here() -> list[Any]:
    here = _environments()
    return [
        pytest.param(path, id=name, marks=pytest.mark.soak if name in LONG else [])
        for path in pages()
        if environment_of(path) in here
        for name in [name_of(path)]
    ]


def _variables(folder: Path) -> dict[str, str]:
    variables = {key: value for key, value in os.environ.items() if not key.startswith("DETCORE_")}
    scripts = str(Path(sys.executable).parent)
    return variables | {
        "CI": "true",  # disables deadlines of hypothesis on a busy machine
        "COLUMNS": "100",
        "DETCORE_HOME": str(folder / "home"),
        "MPLBACKEND": "agg",
        "PATH": scripts + os.pathsep + os.environ.get("PATH", ""),
        "PYTHONPATH": "",
        "TERM": "dumb",
    }


@pytest.mark.long
@pytest.mark.parametrize("path", _pages_here())
def test_page_blocks_run(path: Path, tmp_path: Path) -> None:
    folder = tmp_path / "page"
    folder.mkdir()
    with (tmp_path / "printed").open("w+", encoding="utf-8") as printed:
        finished = subprocess.run(
            [sys.executable, str(SUPPORT / "doc_driver.py"), str(path)],
            cwd=folder,
            env=_variables(tmp_path),
            stdin=subprocess.DEVNULL,
            stdout=printed,
            stderr=subprocess.STDOUT,
            timeout=280,
            check=False,
        )
        printed.seek(0)
        assert finished.returncode == 0, printed.read()[-6000:]
