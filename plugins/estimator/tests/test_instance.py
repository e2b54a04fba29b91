"""Create Estimator trials for debugging, and load their checkpoints."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from toy_command import Detcore

from detcore.client import Checkpoint
from detcore.errors import InvalidCheckpointError
from detcore_estimator.tensorflow_versions import tf

MODEL_DIR = Path(__file__).parent / "model"
# Runs in a separate process, because it switches TensorFlow to V1 behaviour.
SCRIPT = """
import json, sys
from detcore.client import create_trial_instance
from model_def import Shuffled, receiver

class Serving(Shuffled):
    def build_serving_input_receiver_fns(self):
        return {"first": receiver, "second": receiver}

def make():
    return create_trial_instance(Serving, sys.argv[1], hparams={"global_batch_size": 10})

trial = make()
print(type(trial.build_estimator()).__name__, type(trial.build_train_spec()).__name__)
checkpoints = trial.context.checkpoints
before = checkpoints.validate()
folder = checkpoints.save(steps_completed=3)
checkpoints.close()
again = make().context.checkpoints
assert again.latest == folder
again.restore()
assert again.validate() == before, before
again.close()
print(json.dumps({"folder": str(folder), "loss": before["loss"]}))
"""


def test_saved_checkpoint_is_restored_and_loaded(tmp_path: Path) -> None:
    finished = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(tmp_path / "kept")],
        env=Detcore(tmp_path).variables(),
        cwd=MODEL_DIR,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    assert "Estimator TrainSpec" in finished.stdout
    result = json.loads(finished.stdout.splitlines()[-1])
    folder = Path(result["folder"])
    assert folder.parent == tmp_path / "kept"
    for tags in (None, ["serve"]):
        loaded = Checkpoint.load_from_path(folder, tags, name="first")
        assert loaded.signatures["serving_default"](x=tf.zeros((3, 8)))
    with pytest.raises(InvalidCheckpointError, match="no graph with the tags"):
        Checkpoint.load_from_path(folder, tags=["train"], name="first")
