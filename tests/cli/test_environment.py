"""Test commands in a deleted working directory."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

CONFIG = """
name: x
entrypoint: model_def:Line
hyperparameters: {global_batch_size: 8}
searcher: {name: single, metric: val_loss, max_length: {batches: 4}}
"""


def run_command(*arguments: object, shell: str = "", **variables: str) -> tuple[int, str]:
    """Run a command after a shell script; return its exit code and standard error."""
    finished = subprocess.run(
        ["sh", "-c", f'{shell} exec "$@"', "sh", sys.executable, "-m", "detcore",
         *map(str, arguments)],
        capture_output=True, text=True, env={**os.environ, **variables}, check=False,
    )  # fmt: skip
    return finished.returncode, finished.stderr


@pytest.mark.parametrize("command", ["run {config} .", "run c.yaml", "config check c.yaml"])
def test_deleted_working_directory_is_named(tmp_path: Path, command: str) -> None:
    config = tmp_path / "c.yaml"
    config.write_text(CONFIG)
    deleted_folder = tmp_path / "gone"
    deleted_folder.mkdir()
    code, stderr = run_command(
        *command.format(config=config).split(),
        shell=f"cd {deleted_folder}; rmdir {deleted_folder};", DETCORE_HOME=str(tmp_path / "home"),
    )  # fmt: skip
    assert code == 1
    assert stderr == "error: the working directory was deleted.\nChange the directory: cd ~\n"
