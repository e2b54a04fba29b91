"""``detcore tensorboard``: arguments and directory of TensorBoard."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_distributions import run_detcore
from recorded import Records

from detcore.errors import NotFoundError
from detcore.records import Database
from detcore.types import ExperimentState

# A fake TensorBoard that prints its arguments instead of serving.
MAIN = """
import json, os, sys
arguments = sys.argv[1:]
folder = arguments[arguments.index("--logdir") + 1]
files = [os.path.relpath(os.path.join(at, name), folder)
         for at, _, names in os.walk(folder, followlinks=True) for name in names]
print(json.dumps({"arguments": arguments[2:], "files": sorted(files)}))
"""


@pytest.fixture(scope="module")
def records(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Records]:
    home = tmp_path_factory.mktemp("tensorboard") / "home"
    with Database.open(f"sqlite:///{home / 'detcore.db'}") as database:
        records = Records(home, database)
        for _ in range(2):
            trial = records.trial(records.experiment())
            events = records.folder(trial) / "tensorboard"
            events.mkdir()
            (events / "events.out.tfevents.1").write_bytes(b"")
        stray = records.trial(records.experiment())
        elsewhere = home.parent / "elsewhere"
        elsewhere.mkdir()
        (elsewhere / "x.tfevents.1").write_bytes(b"")
        database.set_trial_dir(stray, str(elsewhere))
        database.set_experiment_state(records.experiment(), ExperimentState.COMPLETED)
        yield records


def start(records: Records, site: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    package = site / "tensorboard"
    package.mkdir(exist_ok=True)
    (package / "__init__.py").touch()
    (package / "main.py").write_text(MAIN, encoding="utf-8")
    return run_detcore(
        "tensorboard", *arguments, sites=[site], variables={"DETCORE_HOME": str(records.home)}
    )


def test_tensorboard_reads_several_experiments(records: Records, tmp_path: Path) -> None:
    result = start(records, tmp_path, "1", "2", "3", "--", "--port", "6007")
    arguments = json.loads(result.stdout)
    assert arguments["arguments"] == ["--port", "6007"]
    events = [file for file in arguments["files"] if "tfevents" in file]
    assert events == [
        "experiment-1/1/tensorboard/events.out.tfevents.1",
        "experiment-2/2/tensorboard/events.out.tfevents.1",
        "experiment-3/3/x.tfevents.1",
    ]
    again = start(
        records, tmp_path, "1", "2", "3", "--bind_all"
    )  # TensorBoard's options do not need --
    assert json.loads(again.stdout) == {"arguments": ["--bind_all"], "files": arguments["files"]}


def test_tensorboard_errors_are_reported(records: Records, monkeypatch: pytest.MonkeyPatch) -> None:
    assert "pass the id of an experiment" in records("tensorboard").stderr
    assert "'x' is not an experiment id" in records("tensorboard", "x").stderr
    error = records("tensorboard", "4").exception
    assert isinstance(error, NotFoundError)
    assert "experiment 4 wrote no event files" in str(error)
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    missing = records("tensorboard", "1").exception
    assert "pip install tensorboard" in str(missing)
