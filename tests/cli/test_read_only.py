"""Test that read-only records can be read and not changed."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_command import MODEL_DIR, Detcore

from detcore.records import Database


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Detcore]:
    with Detcore(tmp_path_factory.mktemp("trained")) as detcore:
        detcore.run_checked("run", detcore.config(), MODEL_DIR)
        yield detcore


@pytest.fixture
def copy(trained: Detcore, tmp_path: Path) -> Iterator[Detcore]:
    """A copy of records on a read-only file system."""
    detcore = Detcore(tmp_path)
    shutil.copytree(trained.home, detcore.home)
    with detcore, read_only(detcore.home):
        yield detcore


@contextlib.contextmanager
def read_only(directory: Path) -> Iterator[None]:
    """Mount a directory as a read-only file system."""
    if os.getuid() != 0:
        pytest.skip("a file system can only be mounted as root")
    subprocess.run(["mount", "--bind", directory, directory], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", directory], check=True)
    try:
        yield
    finally:
        subprocess.run(["umount", directory], check=True)


COMMANDS = [
    "experiment list", "experiment describe 1", "experiment trials 1", "experiment best 1",
    "trial describe 1", "trial logs 1", "checkpoint list", "report 1 -o {out}",
]  # fmt: skip


def test_read_only_copy_can_be_read(copy: Detcore, tmp_path: Path) -> None:
    for command in COMMANDS:
        finished = copy.run_checked(*command.format(out=tmp_path / "report.html").split())
    assert "COMPLETED" in copy("experiment", "list").stdout
    assert (tmp_path / "report.html").exists()
    script = (
        "from detcore.client import Determined\n"
        "client = Determined()\n"
        "print(client.get_experiment(1).top_checkpoint().uuid)\n"
        "print(list(client.get_trial(1).stream_validation_metrics())[-1].metrics)\n"
    )
    finished = copy.python("-c", script)
    assert finished.code == 0, finished.stderr


@pytest.mark.parametrize("has_index", [True, False])
def test_read_only_copy_with_newer_records(
    trained: Detcore, tmp_path: Path, has_index: bool
) -> None:
    """A process had the records open during the copy."""
    detcore = Detcore(tmp_path)
    with Database.open(f"sqlite:///{trained.home}/detcore.db") as database:
        database.set_experiment_archived(1, True)
        shutil.copytree(trained.home, detcore.home)
        database.set_experiment_archived(1, False)
    assert (detcore.home / "detcore.db-wal").stat().st_size > 0
    if not has_index:
        (detcore.home / "detcore.db-shm").unlink()
    with detcore, read_only(detcore.home):
        for command in COMMANDS:
            finished = detcore(*command.format(out=tmp_path / "report.html").split())
            assert finished.code == (0 if has_index else 1), f"{command}: {finished.stderr}"
            if not has_index:
                assert "Copy the directory to a writable place" in finished.stderr
        assert ("archived" in detcore("experiment", "list", "--all").stdout) is has_index


def test_change_of_read_only_copy_is_refused(copy: Detcore, tmp_path: Path) -> None:
    finished = copy("experiment", "archive", 1)
    assert finished.code == 1
    assert "can be read, but not changed" in finished.stderr
    writable = tmp_path / "checkpoints"
    writable.mkdir()
    config = copy.config(checkpoint_storage__container_path=str(writable))
    finished = copy("run", config, MODEL_DIR)
    assert finished.code == 1
    assert "can be read, but not changed" in finished.stderr
