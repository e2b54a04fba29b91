"""Scripts of Lightning and Accelerate, killed for real; and the libraries alone, for comparison."""

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
def test_a_script_that_is_killed_and_preempted_equals_one_that_was_not(
    library: str, tmp_path: Path
) -> None:
    """Batches do not depend on the number of loader workers: one script has none."""
    path = SCRIPTS / f"{library}_tasks.py"
    whole = Script(path, tmp_path / "whole").finish()
    broken = Script(path, tmp_path / "broken", ["--workers=2"])
    broken.interrupt_at_random(seed=2, stops=2, at_most=5)
    # SIGTERM saves a checkpoint, from which the next process resumes.
    assert broken.output().count("(checkpoint ") >= 1
    check_equal(whole, broken)
    assert {step for step, _ in whole.metrics("training")} >= {2, 5, 6, 12, 18}
    ledger = verify_ledger(broken.folder)
    assert ledger.is_proved, ledger.sentence()
    assert len(ledger.runs) > 1
    broken.check_no_pickles()


@each_library
def test_the_library_alone_does_not_resume_exactly(library: str, tmp_path: Path) -> None:
    """Show that the test above can fail."""
    whole, broken = (
        Script(SCRIPTS / f"{library}_tasks.py", tmp_path / name, ["--alone"])
        for name in ("whole", "broken")
    )
    whole.finish()
    broken.interrupt(6)
    broken.finish()
    assert verify_ledger(whole.folder).is_proved
    assert not verify_ledger(broken.folder).is_proved
    assert broken.result()["model"] != whole.result()["model"]


@pytest.mark.soak
@each_library
def test_two_ranks_that_were_killed_equal_two_that_were_not(library: str, tmp_path: Path) -> None:
    script = [SCRIPTS / f"{library}_tasks.py", "--epochs=6"]
    script += ["--ranks=2"] if library == "lightning" else []
    check_two_ranks(tmp_path, 30, *script)


def check_two_ranks(folder: Path, num_steps: int, *script: object) -> None:
    """Check that a script on two ranks that are killed ends as one that was not."""
    runs = LoopRuns(folder / "whole"), LoopRuns(folder / "broken")
    for run in runs:
        run.storage = run.home / "checkpoints"
    command = "detcore", "launch", "--launcher", "torch", "-n", 2, "--", "python3", *script
    with runs[0] as whole, runs[1] as broken:
        whole.run(*command)
        broken.kill_after_checkpoint(*command)  # takes both ranks along
        assert broken.newest()[0] < num_steps
        broken.run(*command)
        assert check_same_training(whole, broken) == num_steps


@pytest.mark.soak
@each_library
def test_three_ranks_that_were_killed_sum_their_terms_in_one_order(
    library: str, tmp_path: Path
) -> None:
    """Of two the order does not matter. PyTorch would have another in a process's first step."""
    path, stop = SCRIPTS / f"{library}_tasks.py", Signal(4, needs_checkpoint=True)
    _, broken = check_resume(path, tmp_path, ["--ranks=3", "--epochs=3"], stops=[stop], ranks=3)
    assert ": from batch " in broken.output()


@pytest.mark.soak
@pytest.mark.parametrize("family", ADAPTERS)
@pytest.mark.parametrize(("task", "ranks"), [("points", 1), ("digits", 2)])
def test_the_state_is_that_of_the_end(family: str, task: str, ranks: int, tmp_path: Path) -> None:
    """Killed after the last checkpoint, before the script's own last lines."""
    arguments = [f"--task={task}", f"--ranks={ranks}"]
    path = SCRIPTS / f"{family}_tasks.py"
    check_resume(path, tmp_path, arguments, stops=[KillAtEnd()], ranks=ranks)


@pytest.mark.soak
def test_an_exception_on_one_rank_ends_all(tmp_path: Path) -> None:
    script = [SCRIPTS / "lightning_cases.py", "--case=exception", "--ranks=2"]
    with LoopRuns(tmp_path) as runs:
        process = runs.start(
            "detcore", "launch", "--launcher", "torch", "-n", 2, "--", "python3", *script
        )
        _, stderr = process.communicate(timeout=500)
    assert process.returncode == 1
    assert "ValueError: a bad record" in stderr
    assert "rank 1 ended with exit code 1; ending the others" in stderr
