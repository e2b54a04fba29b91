"""``detcore run`` from the first batch to the summary."""

from __future__ import annotations

import json
import re
import shutil
import signal

import pytest
from toy_command import MODEL_DIR, Detcore


@pytest.mark.cold
def test_run_prints_summary_and_saves_checkpoint(detcore: Detcore) -> None:
    finished = detcore.run_checked("run", detcore.config(), MODEL_DIR, "--json")
    summary = finished.summary
    assert summary["state"] == "COMPLETED"
    (trial,) = summary["trials"]
    assert trial["steps_completed"] == 40
    assert trial["best_validation"] < 0.1
    assert detcore.toy_state(trial["latest_checkpoint"])["step"] == 40


LOUD = """
import sys
import numpy as np
from detcore_toy import ToyTrial

class Loud(ToyTrial):
    def build_data(self):
        x = np.random.default_rng(3).normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

    def on_batch(self, step):
        if step == 2:
            print("NOTICE of a framework", file=sys.stderr)
            print("a line of mine")
            print("a warning of mine", file=sys.stderr)
"""


def test_quiet_and_verbose(detcore: Detcore) -> None:
    folder = detcore.write_code("model_def.py", LOUD)
    path = detcore.config(entrypoint="model_def:Loud")
    plain = detcore("run", path, folder).stdout.splitlines()
    quiet = detcore("run", path, folder, "--quiet").stdout.splitlines()
    verbose = detcore("run", path, folder, "-v").stdout.splitlines()
    notice, own_line, warning = "NOTICE of a framework", "a line of mine", "a warning of mine"
    assert [line in plain for line in (notice, own_line, warning)] == [False, True, True]
    assert [line in verbose for line in (notice, own_line, warning)] == [True, True, True]
    assert quiet[0] == warning
    assert quiet[1] == "experiment 2: completed"
    refused = detcore("run", path, folder, "-qv")
    assert (refused.code, "not both" in refused.stderr) == (2, True)


def test_checkpoint_can_rebuild_trial(detcore: Detcore) -> None:
    finished = detcore("run", detcore.config(), MODEL_DIR, "--json")
    folder = detcore.home / "checkpoints" / finished.summary["trials"][0]["latest_checkpoint"]
    record = json.loads((folder / "trial.json").read_text())
    assert record["trial_class"] == "model_def:Line"
    assert record["framework"] == "toy"
    assert record["steps_completed"] == 40
    assert record["hparams"] == {"global_batch_size": 8, "learning_rate": 0.05}
    versions = json.loads((folder / "manifest.json").read_text())["versions"]
    assert {"detcore", "detcore-toy"} <= set(versions)
    assert (folder / "code" / "model_def.py").read_text() == (
        MODEL_DIR / "model_def.py"
    ).read_text()


def test_smoke_run_trains_one_batch(detcore: Detcore) -> None:
    finished = detcore.run_checked("run", detcore.config(), MODEL_DIR, "--test", "--json")
    (trial,) = finished.summary["trials"]
    assert trial["steps_completed"] == 1
    assert trial["best_validation"] is not None
    assert len(detcore.committed()) == 1


def test_user_error_shows_only_user_frames(detcore: Detcore) -> None:
    finished = detcore.run_failing("run", detcore.config(entrypoint="model_def:Raises"), MODEL_DIR)
    assert "in helper_that_fails" in finished.stdout
    assert "in on_batch" in finished.stdout
    assert "ZeroDivisionError: the user's own mistake at batch 7" in finished.stdout
    assert "detcore/trial/trial_loop.py" not in finished.stdout
    assert "experiment 1: error\n" in finished.stdout


def test_rejected_hyperparameters_end_with_reason(detcore: Detcore) -> None:
    finished = detcore.run_failing(
        "run", detcore.config(entrypoint="model_def:Rejects"), MODEL_DIR, "--json"
    )
    assert finished.summary["error"] == "learning_rate is too high for this trial"


def test_nan_searcher_metric_is_an_error(detcore: Detcore) -> None:
    finished = detcore.run_failing(
        "run", detcore.config(entrypoint="model_def:NotANumber"), MODEL_DIR, "--json"
    )
    assert finished.summary["error"] == "the searcher metric 'val_loss' is NaN at step 10."


def test_missing_hyperparameter_suggests_name(detcore: Detcore) -> None:
    finished = detcore.run_failing(
        "run", detcore.config(entrypoint="model_def:Misspells"), MODEL_DIR
    )
    assert "or rename 'learning_rate' to 'learnin_rate' there" in finished.stdout


def test_stop_request_of_trial_is_logged(detcore: Detcore) -> None:
    finished = detcore.run_checked(
        "run", detcore.config(entrypoint="model_def:StopsEarly"), MODEL_DIR
    )
    line = r"the trial's code requested a stop at batch (\d+) of 40"
    match = re.search(line, finished.stdout)
    assert match
    assert f"trial 1: {match[1]} batches" in finished.stdout


def test_determined_import_suggests_migration(detcore: Detcore) -> None:
    folder = detcore.write_code(
        "model_def.py", "from determined.keras import TFKerasTrial\nLine = 0\n"
    )
    finished = detcore.run_failing("run", detcore.config(), folder)
    assert "imports 'determined', which detcore replaces" in finished.stdout
    assert "detcore migrate ." in finished.stdout
    assert "pip install" not in finished.stdout


def test_wrong_entrypoint_lists_choices(detcore: Detcore) -> None:
    finished = detcore.run_failing("run", detcore.config(entrypoint="model_def:Lin"), MODEL_DIR)
    assert "has no class 'Lin'" in finished.output
    assert "It defines: " in finished.output
    assert "restart" not in finished.output
    finished = detcore("run", detcore.config(entrypoint="modeldef:Line"), MODEL_DIR)
    assert finished.code == 2
    assert "module 'modeldef' is neither in" in finished.stderr
    assert "did you mean 'model_def:Line'?" in finished.stderr


def test_missing_storage_is_found_before_recording(
    detcore: Detcore,
) -> None:
    storage = {"type": "directory", "container_path": str(detcore.tmp_path / "absent")}
    finished = detcore("run", detcore.config(checkpoint_storage=storage), MODEL_DIR)
    assert finished.code == 2
    assert "absent does not exist" in finished.stderr
    assert "No experiments in" in detcore("experiment", "list").stderr


def test_checkpoints_are_pruned_at_the_end(detcore: Detcore) -> None:
    path = detcore.config(checkpoint_storage=None)
    finished = detcore.run_checked("run", path, MODEL_DIR)
    # The best one is the latest.
    assert "checkpoints deleted, 1 kept" in finished.stdout
    (checkpoint,) = detcore.committed()
    assert f"latest checkpoint {checkpoint.parent.name}" in finished.stdout
    states = json.loads(detcore("checkpoint", "list", "--json").stdout)
    assert str(states).count("'COMPLETED'") == 1


def test_checkpoints_are_pruned_during_training(
    detcore: Detcore,
) -> None:
    slow = detcore.slow(pause_from=0) | {"pause_s": 0.1}
    config = detcore.config(
        checkpoint_storage=None,
        hyperparameters=slow,
        searcher__max_length__batches=400,
        scheduling_unit=1,
        min_validation_period__batches=2,
        min_checkpoint_period__batches=2,
    )
    process = detcore.start("run", config, MODEL_DIR)

    def states() -> list[str]:
        listed = detcore("checkpoint", "list", "--deleted", "--json").stdout
        return [row["state"] for row in json.loads(listed or "[]")]

    detcore.wait_for(lambda: states().count("DELETED") > 5, 120)
    # The best, the two latest, those of the last second or two, and one that is being deleted.
    assert states().count("COMPLETED") < 20
    process.send_signal(signal.SIGKILL)
    process.communicate()
    detcore.hurry()
    finished = detcore.run_checked("run", "--resume", 1, "--json")
    assert finished.summary["trials"][0]["steps_completed"] == 400
    # The best one and the latest, which may be the same.
    uuids = {path.parent.name for path in detcore.committed()}
    assert finished.summary["trials"][0]["latest_checkpoint"] in uuids
    assert states().count("COMPLETED") == len(uuids) <= 2


GREEDY = """
import numpy as np
from lines import Line as Base

class Line(Base):
    def on_batch(self, step):
        step == 17 and np.empty(1 << 50)
"""


def test_out_of_memory_is_permanent(detcore: Detcore) -> None:
    folder = detcore.write_code("model_def.py", GREEDY)
    shutil.copy(MODEL_DIR / "model_def.py", folder / "lines.py")
    finished = detcore.run_failing("run", detcore.config(max_restarts=3), folder)
    assert finished.stdout.count("Unable to allocate 8.00 PiB") == 1
    assert "not enough with hyperparameters.global_batch_size 8. Set a smaller" in finished.stdout
    assert "not started again: it would fail in the same way each time" in finished.stdout
    assert "best val_loss" in finished.stdout


@pytest.mark.parametrize("entrypoint", ["NotANumber", "NotANumberLater"])
def test_stop_at_nan_ends_trial(detcore: Detcore, entrypoint: str) -> None:
    config = detcore.config(
        stop_at_nan=True, max_restarts=3, entrypoint=f"model_def:{entrypoint}", scheduling_unit=5
    )
    finished = detcore.run_failing("run", config, MODEL_DIR)
    batch = 5 if entrypoint == "NotANumber" else 15
    assert f"loss is NaN in the report at batch {batch}, and stop_at_nan" in finished.stdout
    assert "not started again: it would fail in the same way each time" in finished.stdout
    # Those of before are kept, and none of what came after.
    assert len(detcore.committed()) == (0 if batch == 5 else 1)


def test_unread_hyperparameters_are_reported_once(detcore: Detcore) -> None:
    config = detcore.config(hyperparameters__learning_rat=0.1, hyperparameters__hidden=3)
    finished = detcore.run_checked("run", config, MODEL_DIR)
    line = "not read the hyperparameter 'learning_rat' so far: did you mean 'learning_rate'"
    assert finished.stdout.count(line) == 1
    assert finished.stdout.count("the code has not read the hyperparameter 'hidden' so far\n") == 1
    assert finished.stdout.count("has not read") == 2
