"""``detcore run`` with several workers."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import pytest
from processes import all_command_lines, wait_until_gone
from toy_command import MODEL_DIR, Detcore, worker_pids

TELL = """
import os
from pathlib import Path
names = [name for name in os.environ if name.startswith(("DETCORE_", "HOROVOD_", "OMP_", "TF_"))]
rank = os.environ["DETCORE_RANK"]
Path(f"told-{rank}").write_text("\\n".join(f"{name}={os.environ[name]}" for name in names))
print("I am", rank)
"""
FAILS = """
import time
import numpy as np
from detcore_toy import ToyTrial

class Fails(ToyTrial):
    def build_data(self):
        self.on_batch("data")
        x = np.random.default_rng(3).normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

    def on_batch(self, step):
        hparams = self.context.get_hparams()
        at = hparams.get("failing_step", 7), hparams["failing_rank"]
        if (step, self.context.distributed.rank) == at:
            raise ZeroDivisionError("a mistake of this rank")
"""


def test_workers_get_horovod_variables(detcore: Detcore) -> None:
    folder = detcore.write_code("train.py", TELL)
    fusion = {"tensor_fusion_threshold": 16, "auto_tune_tensor_fusion": True}
    config = detcore.config(entrypoint="python train.py", optimizations=fusion)
    finished = detcore("run", config, folder, "--slots", 3, timeout_s=60)
    assert finished.code == 0, finished.stdout + finished.stderr
    assert {f"[rank={rank}] I am {rank}" for rank in range(3)} <= set(finished.stdout.splitlines())
    keys = set()
    for rank in range(3):
        text = (folder / f"told-{rank}").read_text()
        variables = dict(line.split("=", 1) for line in text.splitlines())
        for prefix in ("DETCORE_", "HOROVOD_"):
            names = ("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE")
            numbers = [int(variables[prefix + name]) for name in names]
            assert numbers == [rank, 3, rank, 3, 0, 1]
        assert variables["HOROVOD_CONTROLLER"] == variables["HOROVOD_CPU_OPERATIONS"] == "gloo"
        assert int(variables["HOROVOD_GLOO_RENDEZVOUS_PORT"]) > 0
        assert variables["HOROVOD_FUSION_THRESHOLD"] == str(16 << 20)
        assert variables["HOROVOD_AUTOTUNE"] == "1"
        assert "HOROVOD_CYCLE_TIME" not in variables
        assert variables["OMP_NUM_THREADS"] == variables["TF_NUM_INTRAOP_THREADS"]
        assert variables["DETCORE_CHANNEL_FD"]
        keys.add(variables["DETCORE_JOB_KEY"])
    assert len(keys) == 1


@pytest.mark.parametrize(
    ("options", "slots"), [((), 1), (("--no-plugin", "horovod"), 2)], ids=["one slot", "no plugin"]
)
def test_workers_get_no_horovod_variables(
    detcore: Detcore, options: tuple[str, ...], slots: int
) -> None:
    folder = detcore.write_code("train.py", TELL)
    config = detcore.config(entrypoint="python train.py")
    detcore.run_checked(*options, "run", config, folder, "--slots", slots)
    text = (folder / f"told-{slots - 1}").read_text()
    assert f"DETCORE_SIZE={slots}" in text.splitlines()
    assert "HOROVOD_" not in text


@pytest.mark.soak
@pytest.mark.cold
def test_killed_worker_ends_others(detcore: Detcore) -> None:
    config = detcore.config(
        hyperparameters__pause_s=0.03,
        searcher__max_length__batches=200,
    )
    process = detcore.start("run", config, MODEL_DIR, "--slots", 2)
    pids = worker_pids(process)
    detcore.wait_for(detcore.committed)
    key_line = Path(f"/proc/{pids[0]}/environ").read_bytes()
    key = re.search(rb"DETCORE_JOB_KEY=(\w+)", key_line)
    assert key is not None
    assert key[1].decode() not in all_command_lines()
    os.kill(pids[1], signal.SIGKILL)
    stdout, _ = process.communicate(timeout=50)
    assert process.returncode == 1
    assert "experiment 1: error: rank 1 was killed by SIGKILL" in stdout
    assert wait_until_gone(pids, 0.0) == []
    resumed = detcore.run_checked("run", "--resume", 1, "--json", "--slots", 1)
    assert resumed.summary["trials"][0]["steps_completed"] == 200


@pytest.mark.parametrize(
    ("step", "why", "num_starts"),
    [
        ("data", "it failed before its first batch", 1),
        (7, "it failed twice in the same way", 2),
    ],
)
def test_repeated_error_on_other_rank_is_permanent(
    detcore: Detcore, step: object, why: str, num_starts: int
) -> None:
    folder = detcore.write_code("model_def.py", FAILS)
    path = detcore.config(
        entrypoint="model_def:Fails",
        hyperparameters__failing_rank=1,
        hyperparameters__failing_step=step,
        max_restarts=5,
    )
    finished = detcore.run_failing("run", path, folder, "--slots", 2)
    assert f"trial 1 is not started again: {why}" in finished.stdout
    message = "[rank=1] ZeroDivisionError: a mistake of this rank"
    assert finished.stdout.count(message) == num_starts


def test_more_workers_than_cores_are_reported(detcore: Detcore) -> None:
    folder = detcore.write_code("train.py", "print('here')")
    slots = len(os.sched_getaffinity(0)) + 1
    path = detcore.config(entrypoint="python train.py")
    finished = detcore("run", path, folder, "--slots", slots)
    assert f"{slots} workers share {slots - 1} CPU core" in finished.stdout
    assert finished.stdout.count("] here") == slots


def test_more_workers_than_batch_records_are_refused(detcore: Detcore) -> None:
    finished = detcore("run", detcore.config(), MODEL_DIR, "--slots", 9)
    assert finished.code == 2
    assert "global_batch_size 8 is less than slots_per_trial 9" in finished.stderr
    finished = detcore("run", detcore.config(), MODEL_DIR, "--slots", 0)
    assert finished.code == 2
    assert detcore("run", detcore.config(), MODEL_DIR, "--test").code == 0
    finished = detcore.run_failing("run", "--resume", 1, "--slots", 9)
    assert "at most 8" in finished.stderr
    assert "at most 8" not in detcore("run", "--resume", 1, "--slots", 8).stderr


def test_trial_may_start_its_own_launcher(detcore: Detcore) -> None:
    source = """
from detcore import core
with core.init(distributed=core.DistributedContext.from_env()) as context:
    for operation in context.searcher.operations():
        if context.distributed.rank == 0:
            context.train.report_validation_metrics(operation.length, {"val_loss": 0.25})
            operation.report_completed(0.25)
    print("met", context.distributed.allgather(context.distributed.rank))
"""
    folder = detcore.write_code("train.py", source)
    command = "detcore launch -n 2 -- python train.py"
    finished = detcore.run_checked("run", detcore.config(entrypoint=command), folder, "--json")
    assert finished.summary["trials"][0]["best_validation"] == 0.25
    assert finished.stderr.count("] met [0, 1]") == 2
    assert "trial 1: batch 40: validation: val_loss 0.25" in finished.stderr
