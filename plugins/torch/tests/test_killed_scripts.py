"""Really killed scripts of Lightning and Accelerate, and the plain libraries for comparison."""

from __future__ import annotations

from pathlib import Path

import pytest
from _killed_scripts import (
    ADAPTERS,
    SCRIPTS,
    KillAtEnd,
    Script,
    Signal,
    check_equal,
    check_resume,
)
from loop_runs import LoopRuns, check_same_training

from detcore_replay import verify_ledger

pytestmark = pytest.mark.timeout(1800)
each_library = pytest.mark.parametrize(
    # Importing Lightning takes longer than all of its tests.
    "library",
    [pytest.param("lightning", marks=pytest.mark.soak), "accelerate"],
)


@each_library
def test_killed_and_preempted_script_is_exact(library: str, tmp_path: Path) -> None:
    """Batches do not depend on the number of loader workers: one script has no workers."""
    path = SCRIPTS / f"{library}_tasks.py"
    expected = Script(path, tmp_path / "whole").finish()
    broken = Script(path, tmp_path / "broken", ["--workers=2"])
    broken.interrupt_at_random(seed=2, stops=2, at_most=5)
    # SIGTERM saves a checkpoint, from which the next process resumes.
    assert broken.output().count("(checkpoint ") >= 1
    check_equal(expected, broken)
    assert {step for step, _ in expected.metrics("training")} >= {2, 5, 6, 12, 18}
    ledger = verify_ledger(broken.folder)
    assert ledger.is_proved, ledger.sentence()
    assert len(ledger.runs) > 1
    broken.check_no_pickles()


@each_library
def test_plain_library_does_not_resume_exactly(library: str, tmp_path: Path) -> None:
    """Show that the test above can fail."""
    expected, broken = (
        Script(SCRIPTS / f"{library}_tasks.py", tmp_path / name, ["--alone"])
        for name in ("whole", "broken")
    )
    expected.finish()
    broken.interrupt(6)
    broken.finish()
    assert verify_ledger(expected.folder).is_proved
    assert not verify_ledger(broken.folder).is_proved
    assert broken.result()["model"] != expected.result()["model"]


@pytest.mark.soak
@each_library
def test_two_killed_ranks_resume_exactly(library: str, tmp_path: Path) -> None:
    script = [SCRIPTS / f"{library}_tasks.py", "--epochs=6"]
    script += ["--ranks=2"] if library == "lightning" else []
    check_two_ranks(tmp_path, 30, *script)


def check_two_ranks(folder: Path, num_steps: int, *script: object) -> None:
    """Check that a killed script on two ranks ends like an uninterrupted script."""
    runs = LoopRuns(folder / "whole"), LoopRuns(folder / "broken")
    for run in runs:
        run.storage = run.home / "checkpoints"
    command = "detcore", "launch", "--launcher", "torch", "-n", 2, "--", "python3", *script
    with runs[0] as expected, runs[1] as broken:
        expected.run(*command)
        broken.kill_after_checkpoint(*command)  # kills both ranks
        assert broken.newest()[0] < num_steps
        broken.run(*command)
        assert check_same_training(expected, broken) == num_steps


@pytest.mark.soak
@each_library
def test_three_killed_ranks_sum_in_same_order(library: str, tmp_path: Path) -> None:
    """PyTorch would use another order in a process's first step, which two ranks hide."""
    path, stop = SCRIPTS / f"{library}_tasks.py", Signal(4, needs_checkpoint=True)
    _, broken = check_resume(path, tmp_path, ["--ranks=3", "--epochs=3"], stops=[stop], ranks=3)
    assert ": from batch " in broken.output()


@pytest.mark.parametrize(
    ("family", "task", "ranks"),
    [
        # Batch normalization, whose statistics differ between the ranks.
        ("accelerate", "digits", 2),
        pytest.param("lightning", "digits", 2, marks=pytest.mark.soak),
        pytest.param("trainer", "digits", 2, marks=pytest.mark.soak),
        *(pytest.param(name, "points", 1, marks=pytest.mark.soak) for name in ADAPTERS),
    ],
)
def test_final_state_is_complete(family: str, task: str, ranks: int, tmp_path: Path) -> None:
    """The script is killed after the last checkpoint, before its last lines."""
    arguments = [f"--task={task}", f"--ranks={ranks}"]
    path = SCRIPTS / f"{family}_tasks.py"
    check_resume(path, tmp_path, arguments, stops=[KillAtEnd()], ranks=ranks)


@pytest.mark.soak
def test_exception_on_one_rank_ends_all_ranks(tmp_path: Path) -> None:
    script = [SCRIPTS / "lightning_cases.py", "--case=exception", "--ranks=2"]
    with LoopRuns(tmp_path) as runs:
        process = runs.start(
            "detcore", "launch", "--launcher", "torch", "-n", 2, "--", "python3", *script
        )
        _, stderr = process.communicate(timeout=500)
    assert process.returncode == 1
    assert "ValueError: a bad record" in stderr
    assert "rank 1 ended with exit code 1; ending the others" in stderr
