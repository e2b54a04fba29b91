"""Test pausing, resuming, and loading the results, with real runners."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import cast

import pytest
from client_store import ClientStore
from job_server import wait_for
from toy_command import TOY_PLUGIN, Detcore

from detcore.client import Determined
from detcore.client.local_control import control_locally
from detcore.environment import read_environment
from detcore.errors import RunError
from detcore.records import Database, ExperimentRecord
from detcore.types import Control, ExperimentState


@pytest.fixture
def detcore(
    tmp_path: Path, store: ClientStore, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Detcore]:
    monkeypatch.setenv("PYTHONPATH", str(TOY_PLUGIN))
    monkeypatch.setenv("DETCORE_PLUGINS", "core,toy")
    monkeypatch.syspath_prepend(str(TOY_PLUGIN))
    with Detcore(tmp_path) as command:
        command.home = store.home
        yield command


SLOW_UNTIL_GATE = """
import time
from pathlib import Path
import numpy as np
from detcore_toy import ToyTrial

class Gated(ToyTrial):
    def build_data(self):
        x = np.random.default_rng(3).normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

    def on_batch(self, step):
        if step == 59:
            print("the last batch")
        if step >= 10 and not (Path(__file__).parent / "gate").exists():
            time.sleep(0.5)
"""


# Local runs, and runs of a server, which starts the runner.
both = pytest.mark.parametrize("client", ["embedded", "http"], indirect=True)


@both
def test_pause_and_resume(
    client: Determined, detcore: Detcore, store: ClientStore, tmp_path: Path
) -> None:
    code = tmp_path / "code"
    code.mkdir()
    (code / "gated.py").write_text(SLOW_UNTIL_GATE)
    config = detcore.config(entrypoint="gated:Gated", searcher__max_length__batches=60)
    process = detcore.start("run", config, code)
    detcore.wait_for(detcore.committed)
    log = store.home / "experiments" / "1" / "runner.log"
    experiment = client.get_experiment(1)
    experiment.pause()
    _, stderr = process.communicate(timeout=100)
    assert process.returncode == 75, stderr
    assert experiment.state == "PAUSED"
    experiment.activate()
    wait_for(lambda: "from batch" in log.read_text())
    experiment.pause()
    experiment.activate()  # it is still pausing
    assert experiment.state == "RUNNING"
    (code / "gate").touch()
    assert experiment.state in ("RUNNING", "COMPLETED")
    assert experiment.wait(interval=0.1) == "COMPLETED"
    trial = experiment.await_first_trial()
    assert "the last batch" in list(trial.logs(follow=True, stdtypes=["stdout"]))
    reports = list(trial.stream_validation_metrics())
    assert [report.steps_completed for report in reports][-1] == 60
    best = experiment.top_checkpoint()
    least = min(report.metrics["val_loss"] for report in reports)
    assert best.training.validation_metrics["val_loss"] == least
    assert len(best.load()["weights"]) == 3
    assert best.load("model", scale=0.0)["weights"] == [0.0, 0.0, 0.0]
    assert log.read_text().count("from batch") == 2
    with pytest.raises(RunError, match="is complete"):
        experiment.activate()


class EndsWhenLookedAt:
    """Records of an experiment whose runner exits for a pause during a query.

    The exit takes less than a millisecond, so a test cannot time its query.
    """

    def __init__(self, store: ClientStore) -> None:
        self._store, self._database = store, store.database

    def __getattr__(self, name: str) -> object:
        return getattr(self._database, name)

    def observe_experiment(self, experiment_id: int) -> tuple[ExperimentRecord, bool]:
        observation = self._database.observe_experiment(experiment_id)
        if self._database.get_control_request(experiment_id) is Control.PAUSE:
            self._database.set_experiment_state(experiment_id, ExperimentState.PAUSED)
            self._database.request_control(experiment_id, None)
            self._store.release_lock(experiment_id)
        return observation  # the runner has not exited yet


def add_lost_experiment(store: ClientStore, tmp_path: Path) -> int:
    """Record an experiment whose code was deleted."""
    return store.database.create_experiment(
        config={}, config_text=None, model_dir=str(tmp_path / "gone"), name="gone"
    )


def test_ending_runner_is_not_counted_as_running(store: ClientStore, tmp_path: Path) -> None:
    number = add_lost_experiment(store, tmp_path)
    store.take_lock(number)
    store.database.request_control(number, Control.PAUSE)
    records = cast("Database", EndsWhenLookedAt(store))
    with pytest.raises(RunError, match="could not be resumed"):  # so it was tried
        control_locally(records, read_environment(), number, "activate")


def test_request_to_ending_runner_is_not_lost(store: ClientStore) -> None:
    number = store.experiment(state=ExperimentState.RUNNING)
    store.database.request_control(number, Control.PAUSE)
    records = cast("Database", EndsWhenLookedAt(store))
    control_locally(records, read_environment(), number, "cancel")
    record = store.database.get_experiment(number)
    assert (record.state, record.control) == (ExperimentState.CANCELED, None)


@both
def test_failed_start_reports_reason(
    client: Determined, store: ClientStore, tmp_path: Path
) -> None:
    number = add_lost_experiment(store, tmp_path)
    experiment = client.get_experiment(number)
    store.database.set_experiment_state(number, ExperimentState.PAUSED)
    with pytest.raises(RunError, match=r"could not be resumed[\s\S]*gone"):
        experiment.activate()
    assert experiment.state == "PAUSED"
