"""`on_failure: bundle` and `detcore reproduce`, as users run them, on trials of the toy framework."""

from __future__ import annotations

import io
import json
import re
import shutil
import stat
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from toy_command import Detcore, Finished

MODEL = """
import os
import numpy as np
from detcore_toy import ToyTrial

class Line(ToyTrial):
    def build_data(self):
        x = np.random.default_rng(3).normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

    def on_batch(self, step):
        pass  # here

    def fail(self):
        return {}["lost"]
"""
FAULTS = {
    "exception": ("if step == 24: self.fail()", "step 25: KeyError: 'lost'"),
    "killed": ("if step == 26: os.kill(os.getpid(), 9)", "step 26: killed by SIGKILL"),
    "nan": ("if step == 22: self.controller._weights[:] = np.nan", "step 25: loss is NaN in"),
    "start": ("if not hasattr(self, 'a'): self.a = self.fail()", "KeyError: 'lost'"),
}


class Failing:
    """Runs that fail, and their bundles."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.detcore = Detcore(folder)

    def train(self, line: str, *words: str, **changes: Any) -> tuple[Finished, Path | None]:
        """Train code that fails; return the end, and its bundle."""
        config = self.detcore.config(stop_at_nan=True, **changes)
        code = self.folder / f"model-{len(list(self.folder.glob('model-*')))}"
        code.mkdir()
        (code / "model_def.py").write_text(MODEL.replace("pass  # here", line))
        done = self.detcore("run", config, code, "--bundle", *words)
        assert done.code == 1, done.output
        found = re.search(r"detcore reproduce (\S+)", done.output)
        return done, Path(found[1]) if found else None

    def bundle(self, line: str, **changes: Any) -> Path:
        done, path = self.train(line, **changes)
        assert path is not None, done.output
        return path


@pytest.fixture(scope="module")
def failing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Failing]:
    made = Failing(tmp_path_factory.mktemp("failing"))
    with made.detcore:
        yield made


@pytest.fixture(scope="module")
def bundle(failing: Failing) -> Path:
    """A bundle of an exception in step 25."""
    return failing.bundle(FAULTS["exception"][0])


def test_an_exception_is_repeated_in_its_batch(failing: Failing, bundle: Path) -> None:
    done = failing.detcore("reproduce", bundle)
    assert done.code == 0, done.output
    first, ids = done.stdout.splitlines()
    assert first == "reproduced: step 25: KeyError: 'lost' (KeyError at model_def.py:16)"
    assert re.fullmatch(r"  records of the batch: \d+(, \d+){7}", ids)


@pytest.mark.parametrize("name", ["killed", "nan", "start"])
def test_other_ends_are_repeated(failing: Failing, name: str) -> None:
    line, expected = FAULTS[name]
    done = failing.detcore("reproduce", failing.bundle(line))
    assert done.code == 0, done.output
    assert expected in done.stdout
