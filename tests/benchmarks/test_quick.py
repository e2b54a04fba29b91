"""Tests that each benchmark runs in quick mode in its environment.

Benchmarks call internal code: the controllers, the loader and the clock. If that code changes, this
test fails instead of the next measurement.
"""

from __future__ import annotations

import ast
import datetime
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FOLDER = ROOT / "benchmarks"
sys.path.append(str(FOLDER))

import _report  # noqa: E402  (from the folder above)

# These train or open their records in this process.
ALONE = {
    "async_save.py",
    "estimator_snapshot.py",
    "keras_digests.py",
    "keras_records.py",
    "store.py",
}
# These need more than 5 s of CPU even in quick mode.
SLOW = {"estimator_fit.py", "horovod_keras.py", "keras_fit.py", "whole_process.py"}
HERE = _report.this_environment()


@pytest.mark.parametrize(
    "file",
    [
        pytest.param(file, marks=pytest.mark.soak) if file in SLOW else file
        for file in _report.quick_files(HERE)
    ],
)
def test_quick_mode_prints_a_table(
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("DETCORE_HOME", str(tmp_path / "home"))
    path = str(FOLDER / file)
    if file in ALONE:
        subprocess.run([sys.executable, path, "--quick"], check=True)
    else:
        monkeypatch.setattr(sys, "argv", [path, "--quick"])
        runpy.run_path(path, run_name="__main__")

    printed = capfd.readouterr().out
    rows = [line for line in printed.splitlines() if line.startswith("|")]
    assert len(rows) > 2, printed
    assert len({row.count(" | ") for row in rows if not row.startswith("|---")}) <= 2, printed
    assert "nan" not in printed.split()


def sessions_and_folders() -> dict[str, set[str]]:
    """Return the string constants of each nox session, by session name."""
    folders = {}
    for node in ast.parse((ROOT / "noxfile.py").read_text()).body:
        if not isinstance(node, ast.FunctionDef):
            continue
        names = [
            keyword.value.value
            for decorator in node.decorator_list
            if isinstance(decorator, ast.Call)
            for keyword in decorator.keywords
            if keyword.arg == "name" and isinstance(keyword.value, ast.Constant)
        ]
        constants = (part for part in ast.walk(node) if isinstance(part, ast.Constant))
        folders[str(names[0]) if names else node.name] = {str(part.value) for part in constants}
    return folders


def test_every_benchmark_runs_in_one_environment() -> None:
    environments = (_report.BARE, _report.TORCH, _report.TENSORFLOW, _report.TENSORFLOW_2_15)
    files = [path.name for path in FOLDER.glob("*.py") if not path.name.startswith("_")]
    assert sorted(files) == sorted(
        file for name in environments for file in _report.quick_files(name)
    )
    sessions = sessions_and_folders()
    for name in environments:
        assert sessions[name] & {"tests", "tests/benchmarks"}, f"the session {name} runs none"


def test_every_table_has_a_block_in_one_document() -> None:
    blocks = [name for path in _report.DOCUMENTS for name in _report.blocks(path.read_text())]
    assert sorted(blocks) == sorted(table.name for table in _report.TABLES)


def test_table_is_written_with_provenance() -> None:
    table = _report.Table("one", "file.py", _report.BARE, "--rounds 3 --only 'a b'")
    document = (
        "# Title\n\n<!-- table: one -->\nold\n<!-- end of table -->\n\ntext\n\n"
        "<!-- table: one-more -->\nkept\n<!-- end of table -->\n"
    )
    above = _report.provenance(table, "abc1234", datetime.date(2026, 11, 23), load=0.25)

    new_document = _report.with_block(document, "one", f"{above}\n\n| a |\n|---|\n")

    assert _report.blocks(new_document)["one-more"] == "kept"
    assert _report.blocks(new_document)["one"].endswith("\n\n| a |\n|---|")
    for part in (
        "nox -s bench -- one", "python benchmarks/file.py --rounds 3 --only 'a b'", "2026-11-23",
        "commit `abc1234`", "cores", "GiB", "load 0.2", "Python 3.", "numpy ",
    ):  # fmt: skip
        assert part in above
    with pytest.raises(SystemExit, match="'<!-- table: two -->', found 0"):
        _report.with_block(document, "two", "")
