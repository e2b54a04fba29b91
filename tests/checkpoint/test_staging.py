"""Temporary folders: removed when they are done with, and after a killed process by the next."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

from detcore.storage import scratch_directory

HOLDS_ONE = """
import sys
from detcore.storage import scratch_directory
with scratch_directory() as folder:
    (folder / "weights.bin").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", None)
    return folder


def test_staging_of_killed_process_is_removed(temporary: Path) -> None:
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLDS_ONE],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with holder:
        assert holder.stdout is not None
        held_path = Path(holder.stdout.readline().strip())
        assert held_path.parent == temporary
        with scratch_directory() as own_path, scratch_directory() as other:
            assert own_path != other
        assert (held_path / "weights.bin").stat().st_size == 1000  # its process lives
        os.kill(holder.pid, signal.SIGKILL)
    assert held_path.exists()
    with scratch_directory() as own_path:
        assert list(temporary.iterdir()) == [own_path]
    assert list(temporary.iterdir()) == []


def test_staging_cleanup_keeps_foreign_folders(
    temporary: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    precious = tmp_path / "precious"
    precious.mkdir()
    (temporary / "detcore-scratch-link").symlink_to(precious)
    (temporary / "detcore-scratch-file").write_text("a file")
    (temporary / "detcore-scratch-folder").mkdir()
    with monkeypatch.context() as patch:
        me = os.geteuid()
        patch.setattr(os, "geteuid", lambda: me + 1)  # only root can give a folder away
        with scratch_directory():
            pass
    assert len(list(temporary.iterdir())) == 3
    with scratch_directory():
        pass
    assert precious.is_dir()
    suffixes = {path.name.rpartition("-")[2] for path in temporary.iterdir()}
    assert suffixes == {"link", "file"}
