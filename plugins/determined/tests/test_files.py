"""Selection of files, and reports about files that are not rewritten."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from detcore_determined.migrate import find_files, migrate_file


def notebook(*cells: str | list[str]) -> str:
    """Return a notebook in Jupyter's format."""
    document: dict[str, Any] = {
        "cells": [{"cell_type": "code", "outputs": [], "source": cell} for cell in cells],
        "metadata": {"collapsed": None},
        "nbformat": 4,
    }
    return json.dumps(document, indent=1) + "\n"


def test_notebook_is_reported_but_unchanged(tmp_path: Path) -> None:
    path = tmp_path / "train.ipynb"
    content = notebook(
        ["import determined as det\n", "x = det.core\n"], "x = 1\nfrom determined.keras import T",
        ["import determined_by_us\n", "# from determined\n"],
    )  # fmt: skip
    path.write_text(content)
    assert list(find_files([tmp_path])) == [path]
    report = migrate_file(path)
    assert path.read_text() == content
    assert not report.is_changed
    assert not report.is_failed
    assert [(item.kind, item.name) for item in report.findings] == [
        ("left", "determined"), ("left", "determined.keras"),
    ]  # fmt: skip
    lines = content.splitlines()
    for finding in report.findings:
        line = lines[finding.line - 1]
        assert line.startswith(finding.name, finding.column - 1)


def test_notebook_without_determined_has_no_finding(tmp_path: Path) -> None:
    path = tmp_path / "other.ipynb"
    path.write_text(notebook("import numpy\n", "print 'Python 2, and determined'"))
    assert migrate_file(path).findings == ()


def test_unreadable_directory_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("closed", "open"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model_def.py").write_text("x = 1\n")
    closed = tmp_path / "closed"
    scandir = os.scandir

    def refuse(path: Any = ".") -> Any:  # root may read everything
        if Path(path) == closed:
            raise PermissionError(13, "Permission denied", str(path))
        return scandir(path)

    monkeypatch.setattr(os, "scandir", refuse)
    assert list(find_files([tmp_path])) == [tmp_path / "open" / "model_def.py", closed]
    report = migrate_file(closed)
    assert report.is_failed
    assert report.findings[0].problem == "Permission denied"
