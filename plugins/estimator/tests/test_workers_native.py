"""Run a script that trains an estimator on two workers."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys

import pytest
from test_native import detcore, records, write_script
from toy_command import Detcore

__all__ = ["detcore"]  # a fixture

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod does not support this TensorFlow"
)


@pytest.mark.soak
def test_script_runs_directly_and_as_a_trial(detcore: Detcore) -> None:
    script = write_script(detcore, max_steps=12)
    launch = [sys.executable, "-m", "detcore", "launch", "--launcher", "horovod", "-n", "2", "--"]
    finished = subprocess.run(
        [*launch, sys.executable, str(script)],
        env=detcore.variables(),
        cwd=detcore.tmp_path,
        capture_output=True,
        text=True,
        timeout=250,
        check=False,
    )
    output = finished.stdout + finished.stderr
    assert finished.returncode == 0, output
    seeds = re.findall(r"rate 0.05 seed (\d+)", output)
    assert len(seeds) == 2
    assert len(set(seeds)) == 1
    assert output.count("ignored in a trial") <= 1

    settings = {
        "entrypoint": f"{sys.executable} train.py",
        "hyperparameters": {"global_batch_size": 16},
        "searcher": {"name": "single", "metric": "loss", "max_length": {"batches": 12}},
    }
    run = detcore("run", detcore.config(**settings), script.parent, "--slots", 2)
    assert run.code == 0, run.stdout + run.stderr

    with records(detcore) as database:
        for trial_id in (1, 2):
            experiment_id = database.get_trial(trial_id).experiment_id
            summary = database.summarize_trials(experiment_id, metric=None)[trial_id]
            assert summary.steps_completed == 12
            counts = {row.n_records for row in database.metrics(trial_id, "validation")}
            assert counts == {60}
    for manifest in detcore.committed():
        assert (manifest.parent / "workers" / "1" / "estimator-position.json").exists()
