"""A script as the trial: it is the one that is told to make way."""

from __future__ import annotations

import signal

import pytest
from toy_command import Detcore

SCRIPT = """
import time
from detcore import core

with core.init() as context:
    print("source", context.info.source_checkpoint, flush=True)
    context.train.report_training_metrics(1, {"loss": 1.0})
    while not context.preempt.should_preempt():
        time.sleep(0.05)
    time.sleep(0.5)
    with context.checkpoint.store_path({"steps_completed": 1}) as (path, uuid):
        (path / "state").write_text("saved")
    raise SystemExit(75)
"""


@pytest.mark.parametrize("entrypoint", ["python3 train.py", ["python3", "train.py"]])
def test_a_signal_reaches_the_script(detcore: Detcore, entrypoint: object) -> None:
    folder = detcore.tmp_path / "scripts"
    folder.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    process = detcore.start("run", detcore.config(entrypoint=entrypoint), folder)
    # Before its first report it may not have taken hold of signals yet.
    detcore.wait_for(
        lambda: any("loss" in path.read_text() for path in detcore.home.rglob("spool-*.jsonl"))
    )
    process.send_signal(signal.SIGTERM)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == 75, stdout + stderr
    assert "source None" in stdout
    assert len(detcore.committed()) == 1


READS = """
from detcore import core

with core.init() as context:
    hparams = context.info.hparams
    rate, dropout = hparams["learning_rate"], hparams.get("dropout", 0.1)
    for operation in context.searcher.operations():
        context.train.report_validation_metrics(operation.length, {"val_loss": rate * dropout})
        operation.report_completed(rate * dropout)
"""


def test_hyperparameters_that_the_script_never_reads_are_named_once(detcore: Detcore) -> None:
    folder = detcore.tmp_path / "scripts"
    folder.mkdir()
    (folder / "train.py").write_text(READS)
    given = {"learning_rate": 0.5, "droput": 0.3}
    config = detcore.config(entrypoint="python3 train.py", hyperparameters=given, max_restarts=1)
    finished = detcore("run", config, folder, "--set", "hyperparameters.dropuot=0.2")
    assert finished.code == 0, finished.stdout + finished.stderr
    said = "is never read by train.py: did you mean 'dropout', which it reads?"
    assert finished.stdout.count(f"hyperparameters.droput {said}") == 1
    assert finished.stdout.count(f"--set:1:17: note: hyperparameters.dropuot {said}") == 1
    assert finished.stdout.count("never read") == 2
    (folder / "train.py").write_text(READS.replace("[\"learning_rate\"]", "[[*hparams][0]]"))
    assert "never read" not in detcore("run", config, folder).stdout
