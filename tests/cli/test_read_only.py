"""Records in a read-only place: they can be looked at, and not changed."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from toy_command import MODEL_DIR, Detcore


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Detcore]:
    with Detcore(tmp_path_factory.mktemp("trained")) as detcore:
        finished = detcore("run", detcore.config(), MODEL_DIR)
        assert finished.code == 0, finished.stderr
        yield detcore


@pytest.fixture
def copy(trained: Detcore, tmp_path: Path) -> Iterator[Detcore]:
    """A copy of records on a read-only file system."""
    if os.getuid() != 0:
        pytest.skip("a file system can only be mounted as root")
    detcore = Detcore(tmp_path)
    shutil.copytree(trained.home, detcore.home)
    subprocess.run(["mount", "--bind", detcore.home, detcore.home], check=True)
    subprocess.run(["mount", "-o", "remount,ro,bind", detcore.home], check=True)
    with detcore:
        yield detcore
    subprocess.run(["umount", detcore.home], check=True)


COMMANDS = [
    "experiment list", "experiment describe 1", "experiment trials 1", "experiment best 1",
    "trial describe 1", "trial logs 1", "checkpoint list", "report 1 -o {out}",
]  # fmt: skip


def test_read_only_copy_can_be_read(copy: Detcore, tmp_path: Path) -> None:
    for command in COMMANDS:
        done = copy(*command.format(out=tmp_path / "report.html").split())
        assert done.code == 0, f"{command}: {done.stderr}"
    assert "COMPLETED" in copy("experiment", "list").stdout
    assert (tmp_path / "report.html").exists()
    script = (
        "from detcore.experimental import Determined\n"
        "client = Determined()\n"
        "print(client.get_experiment(1).top_checkpoint().uuid)\n"
        "print(list(client.get_trial(1).stream_validation_metrics())[-1].metrics)\n"
    )
    done = copy.python("-c", script)
    assert done.code == 0, done.stderr


def test_change_of_read_only_copy_is_refused(copy: Detcore, tmp_path: Path) -> None:
    done = copy("experiment", "archive", 1)
    assert done.code == 1
    assert "can be read, but not changed" in done.stderr
    writable = tmp_path / "checkpoints"
    writable.mkdir()
    config = copy.config(checkpoint_storage__container_path=str(writable))
    done = copy("run", config, MODEL_DIR)
    assert done.code == 1
    assert "can be read, but not changed" in done.stderr
