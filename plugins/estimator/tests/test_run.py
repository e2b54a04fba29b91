"""Run, kill and resume Estimator trials through the command line."""

from __future__ import annotations

import functools
import importlib.util
import json
import os
import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from toy_command import Detcore

MODEL_DIR = Path(__file__).parent / "model"
BATCHES = 600
HAS_TF_ESTIMATOR = importlib.util.find_spec("tensorflow_estimator") is not None
KILL, INTERRUPT = signal.SIGKILL, signal.SIGINT
# Kinds of trials, with the signals that end each of them before the final resume.
KINDS: list[tuple[str, list[signal.Signals]]] = [
    ("Shuffled", [KILL, INTERRUPT]),
    ("Repeated", [KILL]),
    ("Generated", [KILL]),
]
if HAS_TF_ESTIMATOR:
    KINDS += [("Layers", [KILL]), ("Premade", [KILL])]


@pytest.fixture
def detcore(tmp_path: Path) -> Iterator[Detcore]:
    with Detcore(tmp_path) as command:
        yield command


def write_config(detcore: Detcore, kind: str, batches: int = BATCHES, **changes: Any) -> Path:
    settings: dict[str, Any] = {
        "entrypoint": f"model_def:{kind}",
        "hyperparameters": {"global_batch_size": 10},
        "searcher": {
            "name": "single",
            "metric": "accuracy",
            "smaller_is_better": False,
            "max_length": {"batches": batches},
        },
        "scheduling_unit": 25,
        "min_validation_period": {"batches": 150},
        "min_checkpoint_period": {"batches": 75},
        **changes,
    }
    return detcore.config(**settings)


def folder_of(detcore: Detcore, summary: dict[str, Any]) -> Path:
    (trial,) = summary["trials"]
    return detcore.home / "checkpoints" / trial["latest_checkpoint"]


def variables_of(folder: Path) -> dict[str, np.ndarray]:
    """Return all variables of a checkpoint by name: weights, slots, averages, global step."""
    (index,) = folder.glob("model.ckpt-*.index")
    reader = tf.train.load_checkpoint(str(index.with_suffix("")))
    return {name: reader.get_tensor(name) for name in reader.get_variable_to_shape_map()}


def has_committed(detcore: Detcore, count: int) -> bool:
    return len(detcore.committed()) >= count


def describe_trial(detcore: Detcore, trial_id: int) -> dict[str, Any]:
    finished = detcore("trial", "describe", trial_id, "--json")
    assert finished.code == 0, finished.stderr
    facts: dict[str, Any] = json.loads(finished.stdout)
    return facts


def read_validations(detcore: Detcore, trial_id: int) -> dict[int, dict[str, float]]:
    rows = describe_trial(detcore, trial_id)["validations"]
    return {row["steps_completed"]: row["metrics"] for row in rows}


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.parametrize(("kind", "signals"), KINDS, ids=[kind for kind, _ in KINDS])
def test_killed_run_resumes_exactly(
    detcore: Detcore, kind: str, signals: list[signal.Signals]
) -> None:
    straight = detcore("run", write_config(detcore, kind), MODEL_DIR, "--json")
    assert straight.code == 0, straight.stderr
    expected = variables_of(folder_of(detcore, straight.summary))
    assert expected["global_step"] == BATCHES
    assert any("Adam" in name for name in expected)

    dice = random.Random(kind)
    has_ledger = kind == "Shuffled"  # the other kinds have no epochs with comparable records
    process = detcore.start("run", write_config(detcore, kind, data_ledger=has_ledger), MODEL_DIR)
    for sent_signal in signals:
        before = len(detcore.committed())
        detcore.wait_for(functools.partial(has_committed, detcore, before + 1), 120)
        time.sleep(dice.uniform(0.0, 0.1))
        os.kill(process.pid, sent_signal)
        _, stderr = process.communicate(timeout=60)
        assert process.returncode == (-KILL if sent_signal is KILL else 75), stderr
        process = detcore.start("run", "--resume", 2, "--json")
    stdout, stderr = process.communicate(timeout=200)
    assert process.returncode == 0, stderr

    resumed = variables_of(folder_of(detcore, json.loads(stdout.splitlines()[-1])))
    assert resumed.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(resumed[name], array, err_msg=name, strict=True)
    assert read_validations(detcore, 2) == read_validations(detcore, 1)
    assert len(read_validations(detcore, 1)) == 4
    if has_ledger:
        verified = detcore("data", "verify", 2)
        assert verified.code == 0, verified.stdout + verified.stderr


def test_hook_order_and_files(detcore: Detcore) -> None:
    journal = detcore.tmp_path / "journal.txt"
    settings = {"data": {"journal": str(journal)}, "min_checkpoint_period": {"batches": 2}}
    process = detcore.start("run", write_config(detcore, "Shuffled", 4000, **settings), MODEL_DIR)
    detcore.wait_for(functools.partial(has_committed, detcore, 2), 120)
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60)
    lines = journal.read_text().splitlines()
    assert "first: on_checkpoint_load" not in lines
    # One event for each of the two hooks, in the order of the list.
    assert lines[:8] == [
        f"{name}: {event}"
        for event in ("begin", "after_create_session", "before_run", "after_run")
        for name in ("first", "second")
    ]
    assert lines[-4:] == [
        f"{name}: {event}" for event in ("end", "on_trial_close") for name in ("first", "second")
    ]
    steps = lines.index("first: on_checkpoint_end")
    assert lines[:steps].count("first: after_run") == 2
    for manifest in detcore.committed():
        assert (manifest.parent / "first.txt").read_text() == "from a hook"
        assert "second.txt" in json.loads(manifest.read_text())["files"]


def test_spec_settings_are_used_or_logged(detcore: Detcore) -> None:
    journal = detcore.tmp_path / "journal.txt"
    settings = write_config(detcore, "Exporting", 150, data={"journal": str(journal)})
    finished = detcore("run", settings, MODEL_DIR, "--json")
    assert finished.code == 0, finished.stderr
    output = finished.stdout + finished.stderr
    assert output.count("ignored in a trial") == 1
    for name in ("TrainSpec.max_steps=7", "EvalSpec.throttle_secs=30"):
        assert name in output
    assert finished.summary["trials"][0]["steps_completed"] == 150  # not 7
    assert journal.read_text().splitlines() == ["saved at 75", "saved at 150"]
    exported = list(detcore.home.rglob("export/latest/*/saved_model.pb"))
    assert len(exported) == len(read_validations(detcore, 1)) == 1
    assert str(exported[0].parent) in output


def test_final_export_after_resume(detcore: Detcore) -> None:
    journal = detcore.tmp_path / "journal.txt"
    settings = write_config(detcore, "ExportsAtTheEnd", 20, data={"journal": str(journal)})
    failed = detcore("run", settings, MODEL_DIR)
    assert (failed.code, len(detcore.committed())) == (1, 1), failed.stdout
    assert list(detcore.home.rglob("export/final/*/saved_model.pb")) == []
    resumed = detcore("run", "--resume", 1)
    assert resumed.code == 0, resumed.stderr
    assert len(list(detcore.home.rglob("export/final/*/saved_model.pb"))) == 1


@pytest.mark.cold
def test_smoke_run(detcore: Detcore) -> None:
    finished = detcore("run", write_config(detcore, "Shuffled"), MODEL_DIR, "--test", "--json")
    assert finished.code == 0, finished.stderr
    assert finished.summary["trials"][0]["steps_completed"] == 1
    (manifest,) = detcore.committed()
    assert detcore("checkpoint", "verify", manifest.parent.name).code == 0


@pytest.mark.parametrize(
    ("kind", "said"),
    [
        ("RaisesInModel", ["in model_fn", "ZeroDivisionError"]),
        ("RaisesInReducer", ["in broken_reducer", "LookupError: no mean of 5 batches"]),
    ],
)
def test_errors_show_the_user_code(detcore: Detcore, kind: str, said: list[str]) -> None:
    finished = detcore("run", write_config(detcore, kind, 10), MODEL_DIR)
    assert finished.code == 1
    for text in said:
        assert text in finished.stdout, finished.stdout
    assert "_controller.py" not in finished.stdout
    assert describe_trial(detcore, 1)["validations"] == []
