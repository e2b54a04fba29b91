"""Tests of `create(local=False)` with a real server, from a script and a Jupyter kernel."""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from job_server import JobServer
from notebook_kernel import RunCell, start_kernel

HYPERPARAMETERS = {"global_batch_size": 8, "learning_rate": 0.05}
SCRIPT = f"""
import json, os, sys
import numpy as np
from detcore.environment import read_variables
from detcore_toy import ToyTrial
from detcore.client import create

class Net(ToyTrial):
    def build_data(self):
        names = [name for name in os.environ if name.startswith("DET")]
        told = {{"argv": sys.argv, "cwd": os.getcwd(), "names": names, "files": os.listdir()}}
        print("told", json.dumps(told), flush=True)
        if "--broken" in sys.argv:
            raise ZeroDivisionError("the user's own mistake")
        x = np.random.default_rng(3).normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

here = os.path.dirname(os.path.abspath(__file__))
config = {{
    "hyperparameters": {HYPERPARAMETERS},
    "searcher": {{"max_length": {{"batches": 6}}}},
    "max_restarts": 0,
}}
done = create(Net, config, local=False, context_dir=os.path.join(here, ".."))
if done is None:
    print("the end of the trial's script", flush=True)
else:
    print("back with", done.id, done.state.value, done.top_checkpoint().trial_id)
    print(json.dumps(done.get_config()["entrypoint"]))
"""


@pytest.fixture(scope="module")
def jobs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[JobServer]:
    folder = tmp_path_factory.mktemp("jobs")
    # The database URL is passed as a variable, because it may contain a password.
    database = f"sqlite:///{folder / 'jobs' / 'server' / 'elsewhere.db'}"
    with JobServer(
        folder / "jobs", DETCORE_DB=database, DETCORE_TOKEN="detcore_x", DET_PASS="secret"
    ) as running:
        yield running


@pytest.fixture
def project(jobs: JobServer) -> Path:
    folder = jobs.client.folder / "project"
    (folder / "scripts").mkdir(parents=True, exist_ok=True)
    (folder / "scripts" / "train.py").write_text(SCRIPT)
    (folder / ".detignore").write_text("*.bin\n")
    (folder / "data.bin").write_text("not for the server")
    return folder


def run(jobs: JobServer, *words: str, **variables: str) -> Any:
    jobs.client._variables.update(variables)
    return jobs.client.python(*words)


def test_script_runs_as_trial(jobs: JobServer, project: Path) -> None:
    script = str(project / "scripts" / "train.py")
    finished = run(jobs, script, "--flag", "two words", DET_MASTER=jobs.url)
    assert finished.code == 0, finished.output
    lines = finished.stdout.splitlines()
    assert any("was submitted to http://" in line for line in lines)
    assert any("batch 6: validation: val_loss" in line for line in lines)
    assert "the end of the trial's script" in lines
    entrypoint = ["python3", "scripts/train.py", "--flag", "two words"]
    number = next(line.split()[2] for line in lines if line.startswith("back with"))
    assert lines[-2:] == [f"back with {number} COMPLETED 1", json.dumps(entrypoint)]

    (report,) = [json.loads(line[5:]) for line in lines if line.startswith("told ")]
    assert report["argv"] == entrypoint[1:]
    assert report["cwd"] == str(jobs.server.home / "experiments" / number / "code")
    assert sorted(report["files"]) == [".detignore", "scripts"]
    # The worker has its own token, but none of the server's secrets.
    assert not {"DETCORE_DB", "DET_PASS", "DETCORE_PASSWORD"} & set(report["names"])
    assert "DETCORE_HOME" in report["names"]


def test_remote_failure_raises_locally(jobs: JobServer, project: Path) -> None:
    script = str(project / "scripts" / "train.py")
    finished = run(jobs, script, "--broken", DET_MASTER=jobs.url)
    assert finished.code == 1
    assert "ZeroDivisionError: the user's own mistake" in finished.stdout
    assert "RunError: experiment" in finished.stderr
    assert f"--master {jobs.url}" in finished.stderr


@pytest.fixture
def kernel(jobs: JobServer) -> Iterator[RunCell]:
    variables = {**jobs.client.variables(), "DETCORE_MASTER": jobs.url}
    with start_kernel(jobs.client.folder / "notebook", variables) as run:
        yield run


CELLS = [
    """
    import numpy as np
    from detcore_toy import ToyTrial
    from detcore.client import create
    SIZE = 96
    """,
    """
    class Net(ToyTrial):
        def build_data(self):
            print("in the trial", __name__, flush=True)
            x = np.random.default_rng(3).normal(size=(SIZE, 3))
            return x, x @ np.array([1.0, -2.0, 0.5])
    """,
    f"""
    searcher = {{"max_length": {{"batches": 4}}}}
    config = {{"hyperparameters": {HYPERPARAMETERS}, "searcher": searcher}}
    done = create(Net, config, local=False, context_dir=".", command=["search.ipynb"], test=True)
    print("done", done.state.value, done.get_trials()[0].state.value)
    print(done.get_config()["searcher"]["max_length"])
    """,
]


def test_notebook_class_is_submitted_with_its_cells(jobs: JobServer, kernel: RunCell) -> None:
    for cell in CELLS:
        reply, output = kernel(textwrap.dedent(cell))
        assert reply["status"] == "ok", (reply, output)
    (module,) = (jobs.client.folder / "notebook").glob("detcore_cells_*.py")
    assert f"in the trial {module.stem}" in output
    assert "done COMPLETED COMPLETED\n{'batches': 1}" in output
