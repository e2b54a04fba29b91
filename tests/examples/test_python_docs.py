"""The scripts of docs/experimental.md, run beside the digits example."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys

import pytest
from example_runs import EXAMPLES
from toy_command import Detcore

TEXT = (EXAMPLES.parent / "docs" / "experimental.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```python\n(.*?)```", TEXT, re.DOTALL)


@pytest.mark.parametrize("number", range(3))
def test_every_script_works(detcore: Detcore, number: int) -> None:
    assert len(BLOCKS) == 3
    folder = detcore.tmp_path / "digits"
    shutil.copytree(EXAMPLES / "digits_keras", folder)
    # One trial of the search is enough here.
    (folder / "train.py").write_text(BLOCKS[number].replace('"max_trials": 4', '"max_trials": 1'))
    finished = subprocess.run(
        [sys.executable, "train.py"],
        env=detcore.variables(),
        cwd=folder,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
    assert len([*detcore.committed(), *folder.glob("kept/*/manifest.json")]) >= 1
