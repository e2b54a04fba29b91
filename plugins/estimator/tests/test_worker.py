"""A worker process has V1 behaviour, and does not create TensorFlow's thread pools too early."""

from __future__ import annotations

import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

from estimator_models import run_python

PROGRAM = """
import json, os, sys
from pathlib import Path

from detcore.trial import PrepareOptions
from detcore_estimator.worker_setup import prepare_worker

prepare_worker(PrepareOptions(seed=3))

from detcore_estimator.tensorflow_versions import tf, tf1

threads = []
plain = tf1.Session.__init__

def noting(self, target="", graph=None, config=None):
    threads.append(None if config is None else config.intra_op_parallelism_threads)
    plain(self, target=target, graph=graph, config=config)

tf1.Session.__init__ = noting

import detcore_estimator
from estimator_fakes import Classifier, open_controller, raw_input, train


class Trial(Classifier):
    def build_estimator(self):
        config = detcore_estimator.RunConfig(
            session_config=tf1.ConfigProto(intra_op_parallelism_threads=int(sys.argv[2]))
        )
        return detcore_estimator.Estimator(self.model_fn, config=config)

    def build_serving_input_receiver_fns(self):
        return {"raw": raw_input}

    def train_data(self):
        make = self.context.experimental.cache_train_dataset("digits", "1", shuffle=True)
        return make(self.records)().batch(8)

    def validation_data(self):
        make = self.context.experimental.cache_validation_dataset("digits", "1")
        return make(self.records)().batch(8)


folder = Path(sys.argv[1])
with open_controller(Trial, folder) as controller:
    assert controller.batches_per_epoch() == 7
clock = train(Trial, folder, folder / "c", until=10, validate_every=5)
result = {
    "threads": threads,
    "eager": tf.executing_eagerly(),
    "tasks": len(os.listdir("/proc/self/task")),
    "loss": [batch["loss"] for batch in clock.batches],
    "validations": clock.validations,
}
print("RESULT" + json.dumps(result))
"""


def run_program(tmp_path: Path, *, threads: int) -> dict[str, Any]:
    stdout = run_python("-c", PROGRAM, tmp_path, threads)
    [line] = [line for line in stdout.splitlines() if line.startswith("RESULT")]
    result: dict[str, Any] = json.loads(line.removeprefix("RESULT"))
    return result


def test_sessions_use_the_configuration(tmp_path: Path) -> None:
    few = run_program(tmp_path / "few", threads=1)
    many = run_program(tmp_path / "many", threads=17)

    for result, count in ((few, 1), (many, 17)):
        # Sessions of caches, the data's length, training, validation and the exported model.
        assert len(result["threads"]) >= 4
        assert set(result["threads"]) == {count}
        assert result["eager"] is False
    # TensorFlow's thread pools also have the user's size.
    assert many["tasks"] - few["tasks"] == 16
    assert many["loss"] == few["loss"]
    assert many["validations"] == few["validations"]


def test_several_workers_need_horovod() -> None:
    program = (
        "import sys\n"
        "from detcore.errors import PluginNotFoundError\n"
        "from detcore.trial import PrepareOptions\n"
        "from detcore_estimator.worker_setup import prepare_worker\n"
        "options = PrepareOptions(seed=3, rank=1, world_size=2)\n"
        "sys.modules['detcore_horovod'] = None  # as if it were not installed\n"
        "try:\n"
        "    prepare_worker(options)\n"
        "except PluginNotFoundError as error:\n"
        "    print(error)\n"
        "del sys.modules['detcore_horovod']\n"
        "prepare_worker(options)\n"
    )
    finished = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=False
    )
    assert finished.returncode == 1
    if importlib.util.find_spec("horovod") is None:
        assert "PluginNotFoundError" in finished.stderr
        assert "horovod==0.28.1" in finished.stderr
        assert 'pip install "tensorflow==2.15.*"' in finished.stderr
    else:
        assert "Install it with: pip install 'detcore[horovod]'" in finished.stdout
        assert "this process is rank 1 of 2" in finished.stderr
        assert "Horovod reports rank 0 of 1" in finished.stderr
        assert "detcore launch --launcher horovod" in finished.stderr
