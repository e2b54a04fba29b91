"""Scripts of Lightning and Accelerate, killed for real; and the libraries alone, for comparison."""

from __future__ import annotations

import importlib
import signal
from pathlib import Path

import numpy as np
import pytest
from _killed_scripts import Script, check_equal
from loop_runs import LoopRuns

from detcore_replay import verify_ledger

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = [
    pytest.mark.timeout(1800),
    # Importing Lightning takes longer than all of its tests.
    pytest.mark.parametrize(
        "library", [pytest.param("lightning", marks=pytest.mark.soak), "accelerate"]
    ),
]


@pytest.fixture(autouse=True)
def _imported_once(library: str) -> None:
    """Import the library before processes are forked."""
    importlib.import_module(f"detcore_torch.for_{library}")


def test_a_script_that_is_killed_and_preempted_equals_one_that_was_not(
    library: str, tmp_path: Path
) -> None:
    """Batches do not depend on the number of loader workers: one script has none."""
    path = SCRIPTS / f"{library}_points.py"
    whole = Script(path, tmp_path / "whole")
    assert whole.run() == 0, whole.output()
    broken = Script(path, tmp_path / "broken", ["--workers=2"])
    broken.run_killed(seed=2, kills=2, at_most=5)
    # SIGTERM saves a checkpoint, from which the next process resumes.
    assert broken.output().count("(checkpoint ") >= 1
    check_equal(whole, broken)
    assert {step for step, _ in whole.metrics("training")} >= {2, 5, 6, 12, 18}
    ledger = verify_ledger(broken.folder)
    assert ledger.is_proved, ledger.sentence()
    assert len(ledger.runs) > 1
    # Nothing that the library pickles.
    suffixes = {Path(name).suffix for name in broken.checkpoint_files()}
    assert suffixes <= {".safetensors", ".json", ".py"}


def test_the_library_alone_does_not_resume_exactly(library: str, tmp_path: Path) -> None:
    """Show that the test above can fail."""
    path = SCRIPTS / f"{library}_points.py"
    whole = Script(path, tmp_path / "whole", ["--alone"])
    broken = Script(path, tmp_path / "broken", ["--alone"])
    assert whole.run() == 0, whole.output()
    assert broken.run(kill_at=6) < 0
    assert broken.run() == 0, broken.output()
    assert verify_ledger(whole.folder).is_proved
    assert not verify_ledger(broken.folder).is_proved
    assert broken.result()["model"] != whole.result()["model"]


@pytest.mark.soak
def test_two_ranks_that_were_killed_equal_two_that_were_not(library: str, tmp_path: Path) -> None:
    runs = LoopRuns(tmp_path / "whole"), LoopRuns(tmp_path / "broken")
    for run in runs:
        run.storage = run.home / "checkpoints"
    command = [
        *("detcore", "launch", "--launcher", "torch", "-n", 2, "--"),
        *("python3", SCRIPTS / f"{library}_points.py", "--epochs=6"),
        *(["--ranks=2"] if library == "lightning" else []),
    ]
    with runs[0] as whole, runs[1] as broken:
        whole.run(*command)
        killed = broken.start(*command)
        broken.wait_for_checkpoint(killed)
        killed.kill()  # takes both ranks along
        broken.end(killed, -signal.SIGKILL)
        (steps, expected), (fewer_steps, _) = whole.newest(), broken.newest()
        assert fewer_steps < steps == 30
        broken.run(*command)
        same_steps, found = broken.newest()
        assert steps == same_steps
        assert expected.keys() == found.keys()
        for name in expected:
            assert np.array_equal(expected[name], found[name]), name
        assert whole.metrics(1, "validation") == broken.metrics(1, "validation")


@pytest.mark.soak
def test_three_ranks_that_were_killed_sum_their_terms_in_one_order(
    library: str, tmp_path: Path
) -> None:
    """Of two the order does not matter. PyTorch would have another in a process's first step."""
    path = SCRIPTS / f"{library}_points.py"
    whole, broken = (
        Script(path, tmp_path / name, ["--ranks=3", "--epochs=3"], ranks=3)
        for name in ("whole", "broken")
    )
    assert whole.run() == 0, whole.output()
    assert broken.run(kill_at=4, needs_checkpoint=True) < 0
    assert broken.run() == 0, broken.output()
    assert ": from batch " in broken.output()
    assert broken.result() == whole.result()
