"""A worker loads little: no records, YAML or command line, and few modules of detcore."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from toy_command import Detcore

MAX_MODULES, MAX_LINES = 90, 20_500
HEAVY = {
    "alembic", "click", "fsspec", "optuna", "pathspec", "rich", "sqlalchemy", "urllib3", "yaml",
}  # fmt: skip
# The chief of two workers, so that the connection code is loaded. The list is written at the end.
MODEL = """
import json
import sys
from pathlib import Path
import numpy as np
from detcore_toy import ToyTrial

class Line(ToyTrial):
    def __init__(self, context):
        self.is_chief = context.distributed.rank == 0

    def build_data(self):
        x = np.ones((96, 3))
        return x, x.sum(axis=1)

    def on_batch(self, step):
        if step < 0 and self.is_chief:
            files = {name: getattr(module, "__file__", None)
                     for name, module in sorted(sys.modules.items())}
            Path(%r).write_text(json.dumps(files))
"""


@pytest.mark.cold
def test_worker_loads_little(tmp_path: Path) -> None:
    path = tmp_path / "modules.json"
    model = tmp_path / "model"
    model.mkdir()
    (model / "model_def.py").write_text(MODEL % str(path), encoding="utf-8")
    with Detcore(tmp_path) as detcore:
        finished = detcore("run", detcore.config(resources__slots_per_trial=2), model)
    assert finished.code == 0, finished.output
    loaded: dict[str, str | None] = json.loads(path.read_text(encoding="utf-8"))
    assert HEAVY & {name.partition(".")[0] for name in loaded} == set()
    files = {
        Path(file) for name, file in loaded.items() if file and name.split(".")[0] == "detcore"
    }
    assert len(files) <= MAX_MODULES
    assert sum(file.read_text(encoding="utf-8").count("\n") for file in files) <= MAX_LINES
