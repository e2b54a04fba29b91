"""Trials that start from another trial's checkpoint: weights are used, other state is not."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from toy_command import MODEL_DIR, Detcore

from detcore.data import IndexSampler


def run(detcore: Detcore, *extra: object, **changes: Any) -> dict[str, Any]:
    finished = detcore.run_checked("run", detcore.config(**changes), MODEL_DIR, "--json", *extra)
    trial: dict[str, Any] = finished.summary["trials"][0]
    return trial


def first_batches(weights: list[float], count: int) -> np.ndarray:
    """Return the toy controller's weights after the first batches of a fresh trial."""
    seed = int(np.random.RandomState(7).randint(0, 2**31, dtype=np.int64))
    rng = np.random.default_rng(3)
    x = rng.normal(size=(96, 3))
    y = x @ np.array([1.0, -2.0, 0.5])
    noise = np.random.default_rng(seed)
    sampler = IndexSampler(96, 8, shuffle=True, seed=seed)
    result = np.asarray(weights)
    for step in range(count):
        index = sampler.batch(step)
        error = x[index] @ result - y[index] + noise.normal(scale=1e-3, size=8)
        result = result - 0.05 * x[index].T @ error / 8
    return result


SHORT = {"searcher__max_length": {"batches": 20}}


@pytest.mark.parametrize("kind", ["uuid", "beginning", "trial", "folder"])
def test_source_checkpoint_provides_only_weights(detcore: Detcore, kind: str) -> None:
    source = run(detcore)
    uuid = source["latest_checkpoint"]
    weights = detcore.toy_state(uuid)["weights"]
    setting: dict[str, Any] = {"searcher__source_checkpoint_uuid": uuid}
    if kind == "beginning":
        setting = {"searcher__source_checkpoint_uuid": uuid[:13]}
    elif kind == "trial":
        setting = {"searcher__source_trial_id": source["trial_id"]}
    elif kind == "folder":
        copied = detcore.tmp_path / "downloaded"
        shutil.copytree(detcore.home / "checkpoints" / uuid, copied)
        shutil.rmtree(detcore.home / "checkpoints" / uuid)
        setting = {"searcher__source_checkpoint_uuid": str(copied)}
    trial = run(detcore, **setting, **SHORT)
    assert trial["steps_completed"] == 20
    state = detcore.toy_state(trial["latest_checkpoint"])
    assert state["step"] == 20
    np.testing.assert_array_equal(state["weights"], first_batches(weights, 20))
    # The same experiment without a source leads elsewhere: the test can fail.
    plain = detcore.toy_state(run(detcore, **SHORT)["latest_checkpoint"])
    assert plain["weights"] != state["weights"]


def test_source_in_other_storage_is_found(detcore: Detcore, tmp_path: Path) -> None:
    source = run(detcore, checkpoint_storage=str(tmp_path / "elsewhere"))
    uuid = source["latest_checkpoint"]
    assert (tmp_path / "elsewhere" / uuid).is_dir()
    weights = json.loads((tmp_path / "elsewhere" / uuid / "toy.json").read_text())["weights"]
    trial = run(detcore, searcher__source_trial_id=source["trial_id"], **SHORT)
    state = detcore.toy_state(trial["latest_checkpoint"])
    np.testing.assert_array_equal(state["weights"], first_batches(weights, 20))


@pytest.mark.soak
def test_killed_trial_starts_from_same_source(
    detcore: Detcore,
) -> None:
    source = run(detcore, **SHORT)
    expected = run(detcore, searcher__source_trial_id=source["trial_id"])
    config = detcore.config(
        searcher__source_trial_id=source["trial_id"],
        hyperparameters=detcore.slow(pause_from=1),
        min_checkpoint_period__batches=30,
        checkpoint_policy="none",
    )
    before = len(detcore.committed())
    process = detcore.start("run", config, MODEL_DIR)
    pid = detcore.worker_pid()
    detcore.wait_for(lambda: log_has_metrics(detcore), 60)
    os.kill(pid, signal.SIGKILL)
    process.communicate(timeout=60)
    assert len(detcore.committed()) == before
    for kill in range(2):
        process = detcore.start("run", "--resume", 3)
        pid = detcore.worker_pid()
        if kill == 0:
            os.kill(pid, signal.SIGKILL)  # while it starts
        else:
            detcore.hurry()
            detcore.wait_for(lambda: len(detcore.committed()) > before, 60)
            with contextlib.suppress(ProcessLookupError):  # it may be through just now
                os.kill(pid, signal.SIGKILL)
        process.communicate(timeout=60)
    # After its first checkpoint, the trial does not need its source any more.
    shutil.rmtree(detcore.home / "checkpoints" / source["latest_checkpoint"])
    finished = detcore.run_checked("run", "--resume", 3, "--json")
    resumed = detcore.toy_state(finished.summary["trials"][0]["latest_checkpoint"])
    assert resumed == detcore.toy_state(expected["latest_checkpoint"])


def log_has_metrics(detcore: Detcore) -> bool:
    event_logs = (detcore.home / "experiments" / "3").rglob("events-*.jsonl")
    return any("loss" in log.read_text() for log in event_logs)


def test_source_trial_is_pinned_at_start(
    detcore: Detcore,
) -> None:
    source = run(detcore, **SHORT)
    run(detcore, searcher__source_trial_id=source["trial_id"], **SHORT)
    with detcore.database() as database:
        searcher = database.get_experiment(2).config["searcher"]
    assert searcher["source_checkpoint_uuid"] == source["latest_checkpoint"]
    assert searcher["source_trial_id"] is None


@pytest.mark.parametrize(
    ("setting", "words"),
    [
        ({"searcher__source_checkpoint_uuid": "no-such"}, "no checkpoint 'no-such' is recorded"),
        ({"searcher__source_checkpoint_uuid": "/no/where"}, "The directory does not exist"),
        ({"searcher__source_checkpoint_uuid": "some/where"}, "must be absolute"),
        ({"searcher__source_checkpoint_uuid": ".."}, "not a checkpoint's UUID"),
        ({"searcher__source_trial_id": 77}, "77"),
    ],
)
def test_missing_source_is_refused_before_recording(
    detcore: Detcore, setting: dict[str, Any], words: str
) -> None:
    finished = detcore.run_failing("run", detcore.config(**setting), MODEL_DIR)
    assert words in finished.stderr
    assert "searcher.source_" in finished.stderr
    assert "No experiments in" in detcore("experiment", "list").stderr


def test_source_requires_existing_checkpoint(detcore: Detcore) -> None:
    detcore.run_failing("run", detcore.config(entrypoint="model_def:Rejects"), MODEL_DIR)
    finished = detcore("run", detcore.config(searcher__source_trial_id=1), MODEL_DIR)
    assert "Trial 1 has no checkpoint to start from" in finished.stderr
    uuid = run(detcore, **SHORT)["latest_checkpoint"]
    assert detcore("checkpoint", "delete", uuid, "--yes").code == 0
    finished = detcore.run_failing(
        "run", detcore.config(searcher__source_checkpoint_uuid=uuid), MODEL_DIR
    )
    assert f"Checkpoint {uuid} is recorded as DELETED" in finished.stderr


def test_damaged_source_is_refused(detcore: Detcore) -> None:
    uuid = run(detcore, **SHORT)["latest_checkpoint"]
    path = detcore.home / "checkpoints" / uuid / "toy.json"
    path.write_bytes(path.read_bytes().replace(b'"step"', b'"stop"'))
    finished = detcore.run_failing(
        "run", detcore.config(searcher__source_checkpoint_uuid=uuid), MODEL_DIR
    )
    assert "toy.json" in finished.stdout


def test_smoke_run_starts_from_source(detcore: Detcore) -> None:
    source = run(detcore)
    weights = detcore.toy_state(source["latest_checkpoint"])["weights"]
    trial = run(detcore, "--test", searcher__source_trial_id=source["trial_id"])
    assert trial["steps_completed"] == 1
    state = detcore.toy_state(trial["latest_checkpoint"])
    np.testing.assert_array_equal(state["weights"], first_batches(weights, 1))


def test_source_of_other_framework_is_refused(detcore: Detcore) -> None:
    uuid = run(detcore, **SHORT)["latest_checkpoint"]
    copied = detcore.tmp_path / "downloaded"
    shutil.copytree(detcore.home / "checkpoints" / uuid, copied)
    path = copied / "trial.json"
    path.write_text(path.read_text().replace('"framework": "toy"', '"framework": "other"'))
    config = detcore.config(searcher__source_checkpoint_uuid=str(copied))
    finished = detcore.run_failing("run", config, MODEL_DIR)
    assert (
        "a checkpoint of the framework 'other' (trial class model_def:Line), not of 'toy'"
        in finished.stdout
    )


def test_controller_without_start_from_is_refused(detcore: Detcore) -> None:
    uuid = run(detcore, **SHORT)["latest_checkpoint"]
    model_dir = detcore.tmp_path / "model"
    model_dir.mkdir()
    (model_dir / "model_def.py").write_text(
        (MODEL_DIR / "model_def.py").read_text()
        + "\nfrom detcore_toy import ToyController\ndel ToyController.start_from\n"
    )
    config = detcore.config(searcher__source_checkpoint_uuid=uuid)
    finished = detcore.run_failing("run", config, model_dir)
    assert "'toy' cannot start from another trial's checkpoint" in finished.stdout
