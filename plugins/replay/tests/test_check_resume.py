"""The command `detcore check-resume` on toy trials, scripts and programs without detcore."""

from __future__ import annotations

import re
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from checked_programs import FAULTS, OUTPUT, run_by_hand, write_program
from toy_command import Detcore, Finished

from detcore.errors import RunError
from detcore_replay.resume_check import scratch_runs
from detcore_replay.resume_check.scratch_runs import ScratchRuns
from detcore_replay.resume_check.tensor_files import compare_files

MODEL = """
import numpy as np
from detcore_toy import ToyTrial

class Line(ToyTrial):
    noise = 0.0

    def build_data(self):
        self.generator = np.random.default_rng({seed})
        x = np.random.default_rng(3).normal(size=(96, 3))
        return x, x @ np.array([1.0, -2.0, 0.5])

    def on_batch(self, step):
        if step >= 0:
            self.controller._rate = 0.05 + {scale} * self.generator.random()
"""
FORGETTING = """
from detcore_toy import ToyController

def restore(self, directory, restore_all=ToyController.restore):
    noise = self._noise
    self._noise = np.random.default_rng(1)
    restore_all(self, directory)
    self._noise = noise

ToyController.restore = restore
"""
SCRIPT = """
import sys, time
import numpy as np
from detcore import core

generator = np.random.default_rng(5)
with core.init(resume="--resume" in sys.argv) as context:
    steps, weights = 0, np.zeros(3)
    if context.info.latest_checkpoint is not None:
        with context.checkpoint.restore_path(context.info.latest_checkpoint) as path:
            with np.load(path / "state.npz") as file:
                steps, weights = int(file["steps"]), file["weights"]
    while steps < 20:
        steps += 1
        weights += generator.random(3) if "--draw" in sys.argv else steps
        time.sleep(0.01)
        if "--silent" not in sys.argv:
            context.train.report_training_metrics(steps, {"norm": float(abs(weights).sum())})
        if steps % 4 == 0:
            with context.checkpoint.store_path({"steps_completed": steps}) as (path, uuid):
                np.savez(path / "state.npz", steps=steps, weights=weights)
"""
SAMPLE = ("none", "generator", "optimizer")


class Checks(Detcore):
    """The command in a directory, with a separate directory for temporary files."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self.temporary = folder / "temporary"
        self.temporary.mkdir(parents=True)
        self.code = folder / "code"
        self.code.mkdir()

    def variables(self) -> dict[str, str]:
        return {**super().variables(), "TMPDIR": str(self.temporary)}

    def check(self, *words: object, code: int) -> Finished:
        """Run the command in the code directory; check its exit code and that it leaves nothing."""
        before = sorted(path.name for path in self.code.iterdir())
        result = self.python("-m", "detcore", "check-resume", *words, cwd=self.code, timeout_s=250)
        assert result.code == code, result.output
        assert sorted(path.name for path in self.code.iterdir()) == before
        assert list(self.temporary.iterdir()) == []
        assert not self.home.exists()
        assert self.leftovers(0) == {}
        return result

    def check_trial(
        self, *, scale: float, seed: object = 5, code: int, code_text: str = MODEL
    ) -> Finished:
        """Check a toy trial with a generator that it does not save."""
        (self.code / "model_def.py").write_text(code_text.format(scale=scale, seed=seed))
        hparams = {"global_batch_size": 8, "learning_rate": 0.05, "pause_s": 0.08}
        config = self.write_config(
            {
                "name": "toy",
                "entrypoint": "model_def:Line",
                "hyperparameters": hparams,
                "searcher": {
                    "name": "random", "metric": "val_loss", "max_length": {"batches": 900},
                    "max_trials": 3,
                },
            }
        )  # fmt: skip
        return self.check(config, self.code, "--json", code=code)

    def check_program(self, *words: object, code: int, output: str = OUTPUT) -> Finished:
        """Check ``train.py``, which does not use detcore."""
        start = f"{sys.executable} train.py"
        resume = f"{start} --resume"
        return self.check(
            "--start", start, "--resume", resume, "--output", output, *words, code=code
        )


@pytest.fixture
def checks(tmp_path: Path) -> Iterator[Checks]:
    with Checks(tmp_path) as command:
        yield command


def test_exact_trial_is_exact(checks: Checks) -> None:
    result = checks.check_trial(scale=0, code=0).summary
    assert (result["is_equal"], result["difference"], result["notes"]) == (True, "", [])
    assert len(result["kills"]) == 3
    *resumes, counts = result["compared"]
    starts = [int(match[1]) for line in resumes if (match := re.search(r"batch (\d+);", line))]
    # The first checkpoint, a checkpoint within the second epoch, and the end of this epoch. On a
    # busy machine, a kill can come after a later checkpoint, or before the next report.
    assert 3 <= starts[0] < 12 < starts[1] <= 24 <= starts[2] <= 27
    assert all(re.search("identical|not compared", line) for line in resumes)
    assert counts == ("compared 30 steps, 33 reports and 10 checkpoints with 3 parts of the state")


def test_unsaved_generator_is_named(checks: Checks) -> None:
    result = checks.check_trial(scale=0.1, code=1).summary
    # After the checkpoint at batch 3, batch 4 is trained with another rate. On a busy machine, the
    # first kill can come after a later checkpoint.
    found = re.fullmatch(r"step (\d+), loss, gradient\.weights", result["difference"])
    assert found is not None, result["difference"]
    assert int(found[1]) >= 5
    assert "in model_def.py:9: self.generator = np.random.default_rng(5)" in result["details"]


@pytest.mark.soak
def test_part_that_is_not_restored_is_named(checks: Checks) -> None:
    code = f"{MODEL}{FORGETTING}"
    result = checks.check_trial(code_text=code, scale=0, code=1).summary
    assert result["difference"].startswith("random.noise was saved")
    assert result["details"][0].startswith("InexactResumeError: the restored state is not")


@pytest.mark.soak
def test_epoch_of_unknown_length_is_accepted(checks: Checks) -> None:
    code = MODEL.replace(
        "class Line",
        "from detcore_toy import ToyController\n"
        "ToyController.batches_per_epoch = lambda self: None\nclass Line",
    )
    result = checks.check_trial(code_text=code, scale=0, code=0).summary
    assert result["notes"] == [
        "no validation before the end of training, so no kill was at the end of an epoch"
    ]


def test_unseeded_generator_is_not_repeatable(checks: Checks) -> None:
    result = checks.check_trial(scale=0.1, seed="", code=1).summary
    assert result["difference"].startswith("step 2, before the first kill")
    assert "probable cause: training is not repeatable, even without a kill" in result["details"]


def test_exact_script_is_exact(checks: Checks) -> None:
    (checks.code / "train.py").write_text(SCRIPT)
    result = checks.check("--", sys.executable, "train.py", "--resume", code=0)
    assert "compared 20 reports\ncompared 2 tensors in 1 file of the final" in result.stdout
    assert result.stdout.endswith("resume is exact: all compared values have the same bits\n")


def test_script_that_does_not_resume_is_named(checks: Checks) -> None:
    (checks.code / "train.py").write_text(SCRIPT)
    result = checks.check("--", sys.executable, "train.py", code=1)
    assert "resume is not exact: 2 trials instead of 1" in result.stdout
    assert "Pass resume=True to core.init()" in result.stdout


@pytest.mark.parametrize("option", ["--draw", "--silent"])
@pytest.mark.soak
def test_script_with_unsaved_generator_is_named(checks: Checks, option: str) -> None:
    (checks.code / "train.py").write_text(SCRIPT)
    words = dict.fromkeys(["--draw", option])
    result = checks.check("--", sys.executable, "train.py", "--resume", *words, code=1)
    place = "the final checkpoint differs" if option == "--silent" else "step"
    assert f"resume is not exact: {place}" in result.stdout


def test_script_without_detcore_is_rejected(checks: Checks) -> None:
    (checks.code / "train.py").write_text("print('trained')")
    result = checks.check("--", sys.executable, "train.py", code=2)
    assert "the program ended without using detcore" in result.stderr
    assert "detcore check-resume --start COMMAND" in result.stderr


@pytest.mark.parametrize(
    "fault",
    [pytest.param(fault, marks=[] if fault in SAMPLE else pytest.mark.soak) for fault in FAULTS],
)
def test_program_is_judged_as_by_hand(checks: Checks, fault: str, tmp_path: Path) -> None:
    kind = FAULTS[fault]
    is_equal = run_by_hand(tmp_path / "hand", fault, kind)
    assert is_equal == (fault in ("none", "nothing", "start over"))
    (checks.code).rmdir()
    write_program(checks.code, fault, kind)
    result = checks.check_program("--json", code=0 if is_equal else 1).summary
    assert result["is_equal"] is is_equal
    assert 0 < len(result["kills"]) <= 3


def test_different_tensors_are_listed(tmp_path: Path) -> None:
    one, other = tmp_path / "one", tmp_path / "other"
    for folder, value in ((one, 1.0), (other, 1.5)):
        folder.mkdir()
        np.savez(folder / "model.npz", a=np.full(3, value), b=np.array([np.nan, 2.0]))
        (folder / "log.txt").write_text(str(folder))
    np.save(one / "bias.npy", np.zeros(2))
    np.save(other / "objects.npy", np.array([{}], dtype=object), allow_pickle=True)
    comparison = compare_files(one, other)
    assert comparison.differences == (
        "bias.npy does not exist after the resumed run",
        "model.npz: a float64[3], 3 of 3 values differ, by up to 0.5",
    )
    assert comparison.num_tensors == 2
    assert comparison.notes == (
        "not compared: log.txt has different bytes",
        "not compared: objects.npy does not exist after the uninterrupted run",
    )


def test_unknown_files_are_compared_by_bytes(tmp_path: Path) -> None:
    for name in ("one", "other"):
        (tmp_path / name).write_text(name)
    comparison = compare_files(tmp_path / "one", tmp_path / "other")
    assert comparison.differences == ("one has different bytes",)
    assert compare_files(tmp_path / "one", tmp_path / "one").differences == ()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_interrupted_check_leaves_nothing(checks: Checks, number: signal.Signals) -> None:
    write_program(checks.code / "program", "none", "npz")
    start = 'python3 -c \'import time; open("started", "w"); time.sleep(60)\''
    words = ["--start", start, "--resume", "true", "--output", "x"]
    process = checks.start_python("-m", "detcore", "check-resume", *words, cwd=checks.code)
    checks.wait_for(lambda: list(checks.temporary.glob("*/work/started")))
    process.send_signal(number)
    assert process.wait(60) == 130
    assert list(checks.temporary.iterdir()) == []
    assert checks.leftovers(10) == {}


def test_program_that_fails_after_kill_is_reported(checks: Checks) -> None:
    start = "touch written; sleep 0.3; touch final"
    result = checks.check(
        "--start", start, "--resume", "echo no checkpoint; exit 3", "--output", "final",
        "--kill-after", 0.1, code=1,
    )  # fmt: skip
    assert "resume is not exact: the program does not resume\n" in result.stdout
    assert "ended with code 3. Last lines:\n  no checkpoint" in result.stdout


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ((), "give an experiment file, or a command after --, or --start"),
        (("a.yaml", "--start", "x"), "--start, --resume and --output are needed together"),
        (("--start", "a", "--resume", "b", "--output", "/tmp/c"), "is not below the working"),
        (("--start", "true", "--resume", "true", "--output", "c"), "c does not exist after 'true'"),
        (("--set", "a=b", "--", "true"), "--set requires an experiment file"),
        (("missing.yaml",), "missing.yaml"),
        (("--", "./missing"), "cannot be started"),
    ],
)
def test_impossible_checks_are_rejected(
    checks: Checks, words: tuple[str, ...], message: str
) -> None:
    assert message in checks.check(*words, code=2).stderr


def test_working_directory_is_copied_without_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    for name in ("data", ".venv", "__pycache__", "package"):
        (source / name).mkdir(parents=True)
        (source / name / "file").write_text("1")
    runs = ScratchRuns(tmp_path / "scratch" / "1", source, ["data/"])
    for name in ("data", ".venv"):
        assert (runs.folder / name).is_symlink()
    (runs.folder / "package" / "file").write_text("2")
    assert (source / "package" / "file").read_text() == "1"
    assert not (runs.folder / "__pycache__").exists()


def test_large_directory_is_not_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scratch_runs, "_MAX_COPY_BYTES", 1000)
    (tmp_path / "source" / "data").mkdir(parents=True)
    (tmp_path / "source" / "data" / "file").write_bytes(bytes(2000))
    with pytest.raises(RunError, match="--link data"):
        ScratchRuns(tmp_path / "scratch" / "1", tmp_path / "source")
    ScratchRuns(tmp_path / "scratch" / "2", tmp_path / "source", ["data"])
