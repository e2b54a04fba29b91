"""Kill, resume and stop Estimator trials on two workers through the command line."""

from __future__ import annotations

import importlib.util
import os
import random
import signal
import time
from typing import Any

import numpy as np
import pytest
from test_run import (
    INTERRUPT,
    KILL,
    MODEL_DIR,
    describe_trial,
    detcore,
    folder_of,
    read_validations,
    variables_of,
    write_config,
)
from toy_command import Detcore

__all__ = ["detcore"]  # a fixture

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("horovod") is None, reason="Horovod does not support this TensorFlow"
)
BATCHES = 120
PERIODS: dict[str, Any] = {
    "min_validation_period": {"batches": 40},
    "min_checkpoint_period": {"batches": 20},
}


@pytest.mark.soak
@pytest.mark.long
@pytest.mark.parametrize(
    ("kind", "sent", "settings"),
    [
        ("Shuffled", INTERRUPT, {}),
        ("Shuffled", KILL, {"optimizations": {"aggregation_frequency": 4}}),
        ("Generated", KILL, {}),
        ("Premade", KILL, {}),
    ],
    ids=["interrupted", "aggregation", "generated", "premade"],
)
def test_ended_run_resumes_exactly(
    detcore: Detcore, kind: str, sent: signal.Signals, settings: dict[str, Any]
) -> None:
    file = write_config(detcore, kind, BATCHES, **PERIODS, **settings)
    straight = detcore("run", file, MODEL_DIR, "--slots", 2, "--json")
    assert straight.code == 0, straight.stdout + straight.stderr
    expected = variables_of(folder_of(detcore, straight.summary))
    assert expected["global_step"] == BATCHES

    dice = random.Random(kind)
    process = detcore.start("run", file, MODEL_DIR, "--slots", 2)
    before = len(detcore.committed())
    detcore.wait_for(lambda: len(detcore.committed()) >= before + 2, 120)
    time.sleep(dice.uniform(0.0, 0.3))
    os.kill(process.pid, sent)
    stdout, stderr = process.communicate(timeout=60)
    assert process.returncode == (-KILL if sent is KILL else 75), stdout + stderr
    resumed = detcore("run", "--resume", 2, "--json")
    assert resumed.code == 0, resumed.stdout + resumed.stderr

    variables = variables_of(folder_of(detcore, resumed.summary))
    assert variables.keys() == expected.keys()
    for name, array in expected.items():
        np.testing.assert_array_equal(variables[name], array, err_msg=name, strict=True)
    assert read_validations(detcore, 2) == read_validations(detcore, 1)
    assert len(read_validations(detcore, 1)) == 3
    assert {row["n_records"] for row in describe_trial(detcore, 1)["validations"]} == {203}


def test_hook_ranks_and_stop_requests(detcore: Detcore) -> None:
    journal = detcore.tmp_path / "journal.txt"
    settings = {"data": {"journal": str(journal)}, **PERIODS}
    finished = detcore(
        "run",
        write_config(detcore, "StoppedByAWorker", 4000, **settings),
        MODEL_DIR,
        "--slots",
        2,
        "--json",
    )
    assert finished.code == 0, finished.stdout + finished.stderr
    (trial,) = finished.summary["trials"]
    assert 60 <= trial["steps_completed"] < 4000
    events = journal.read_text(encoding="utf-8").split()
    # Worker 1 requested the stop, and both ended at the same batch.
    assert [event for event in events if "asked" in event] == ["1:asked"]
    assert sorted(event for event in events if "end" in event) == [
        f"{rank}:end:{trial['steps_completed']}" for rank in range(2)
    ]
    assert {event for event in events if "checkpoint" in event} == {"0:checkpoint"}
    assert {event for event in events if "saved" in event} == {"0:saved"}
    assert sorted(event for event in events if "chief" in event) == ["0:chief"]
    assert sorted(event for event in events if "close" in event) == ["0:close", "1:close"]
