"""Test `create` in cells of a Jupyter kernel."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
from notebook_kernel import RunCell, start_kernel
from page_check import Page
from toy_command import Detcore

CELLS = [
    "import numpy as np\nfrom detcore_toy import ToyTrial\nfrom detcore.client import create",
    "%time SIZE = 48\nSIZE = 96",
    "class Net(ToyTrial):\n    def build_data(self):\n        return forgotten()",
    """def make():
    x = np.random.default_rng(3).normal(size=(SIZE, 3))
    return x, x @ np.array([1.0, -2.0, 0.5])""",
    # Run again after a mistake.
    """class Net(ToyTrial):
    def build_data(self):
        print("in the trial", __name__, flush=True)
        return make()""",
    "raise KeyError('a cell that the trials must not run')",
    """config = {"hyperparameters": {"global_batch_size": 8, "learning_rate": 0.05},
          "searcher": {"name": "random", "max_trials": 2, "max_length": {"batches": 4}}}
experiment = create(Net, config, local=True)
print("experiment", experiment.id, __name__)""",
]
AGAIN = """from detcore.client import create_trial_instance
trial = create_trial_instance(Net, "kept", {**config, "searcher": {"max_length": {"batches": 4}}})
print("saved", trial.context.checkpoints.save().name)
create(Net, {"max_restarts": 0}, local=True)  # without learning_rate"""


@pytest.fixture
def kernel(tmp_path: Path) -> Iterator[RunCell]:
    with start_kernel(tmp_path / "notebook", Detcore(tmp_path).variables()) as run:
        yield run


def test_create_accepts_class_of_notebook_cell(kernel: RunCell, tmp_path: Path) -> None:
    *before, last = CELLS
    for cell in before:
        kernel(cell)
    reply, output = kernel(last)
    assert reply["status"] == "ok", (reply, output)
    assert "experiment 1 __main__" in output
    # Jupyter shows the last value of a cell like this.
    _, html = kernel("print(get_ipython().display_formatter.format(experiment)[0]['text/html'])")
    assert len(Page(html.strip()).drawings()) == 2
    assert "Experiment 1" in html
    (module,) = (tmp_path / "notebook").glob("*.py")
    assert f"the trials import Net from {module.resolve()}" in output
    assert output.count(f"in the trial {module.stem}") == 2
    assert "KeyError" not in module.read_text()
    (first, _) = Detcore(tmp_path).committed()
    record = json.loads((first.parent / "trial.json").read_text())
    assert record["trial_class"] == f"{module.stem}:Net"
    assert (first.parent / "code" / module.name).read_text() == module.read_text()

    reply, output = kernel(AGAIN)
    assert reply["ename"] == "RunError", output
    assert "unknown hyperparameter 'learning_rate'" in output
    (trial_file,) = (tmp_path / "notebook" / "kept").glob("*/trial.json")
    assert f"saved {trial_file.parent.name}" in output
    assert json.loads(trial_file.read_text())["trial_class"] == f"{module.stem}:Net"
    assert list((tmp_path / "notebook").glob("*.py")) == [module]
