"""Features of libraries in scripts that are killed early, halfway, and late."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from _killed_scripts import SCRIPTS, KillAtEnd, Script, Signal, Stop, check_resume

pytestmark = pytest.mark.timeout(600)


def make_script(folder: Path, library: str, case: str, *arguments: str) -> Script:
    return Script(
        SCRIPTS / f"{library}_cases.py", folder, [f"--case={case}", "--epochs=4", *arguments]
    )


def run_case(
    folder: Path, library: str, case: str, stops: Sequence[int | Stop] = (4, 6, 9)
) -> tuple[Script, Script]:
    script = make_script(folder, library, case)
    return check_resume(script.path, folder, script.arguments, stops=stops)


def run_alone(folder: Path, case: str) -> tuple[Script, Script]:
    """Run a script with plain Lightning, and with detcore."""
    alone = make_script(folder / "alone", "lightning", case, "--alone")
    return alone.finish(), make_script(folder / "whole", "lightning", case).finish()


def list_names(*scripts: Script) -> list[list[str]]:
    """Return the names of the files that Lightning has written for each script."""
    return [sorted(path.name for path in script.folder.rglob("*.ckpt")) for script in scripts]


@pytest.mark.parametrize(
    ("library", "case"),
    [
        ("accelerate", "finetune"),  # layers are unfrozen, and a parameter group is added
        ("lightning", "average"),  # a callback that replaces the weights in Lightning's checkpoint
        pytest.param("accelerate", "lbfgs", marks=pytest.mark.soak),
        *(
            pytest.param("lightning", case, marks=pytest.mark.soak)
            for case in ("accumulate", "attributes", "filtered", "finetune", "lbfgs", "swa-norm")
        ),
    ],
)
def test_killed_training_ends_like_uninterrupted_run(
    tmp_path: Path, library: str, case: str
) -> None:
    run_case(tmp_path, library, case)


def test_unapplied_gradients_are_restored(tmp_path: Path) -> None:
    run_case(tmp_path, "accelerate", "summed", [3, 2])


@pytest.mark.soak
def test_epoch_metrics_survive_kills(tmp_path: Path) -> None:
    """A learning rate depends on metrics that the model stores in a list unknown to Lightning."""
    runs = run_case(tmp_path, "lightning", "plateau-train")
    errors = [(script.folder / "errors.txt").read_text() for script in runs]
    assert errors[0] == errors[1]
    assert errors[0].count("(") == 4


@pytest.mark.soak
@pytest.mark.parametrize(
    "case", ["average", "finetune", "plateau", "stop", "stop-late", "swa", "swa-norm"]
)
def test_training_ends_like_plain_lightning(tmp_path: Path, case: str) -> None:
    alone, expected = run_alone(tmp_path, case)
    for name, digest in alone.result().items():
        # A validation restores the generators, unlike in Lightning.
        assert name in ("torch", "numpy", "python") or expected.result()[name] == digest, name


@pytest.mark.soak
@pytest.mark.parametrize("case", ["average", "plateau", "stop", "swa", "swa-norm"])
def test_run_killed_after_training_ends_like_uninterrupted(tmp_path: Path, case: str) -> None:
    run_case(tmp_path, "lightning", case, [KillAtEnd()])


@pytest.mark.soak
@pytest.mark.parametrize("case", ["average", "plateau", "stop"])
@pytest.mark.parametrize("step", [3, 5])  # a validation is due at 5
def test_preempted_run_ends_like_uninterrupted_run(tmp_path: Path, case: str, step: int) -> None:
    run_case(tmp_path, "lightning", case, [Signal(step, signal.SIGTERM)])


@pytest.mark.soak
@pytest.mark.parametrize(
    ("case", "others"),
    [("best", ["last.ckpt"]), ("best-logged", [])],  # the other in a directory of its logger
)
def test_best_files_survive_kills(tmp_path: Path, case: str, others: list[str]) -> None:
    expected, broken = run_case(tmp_path, "lightning", case)
    assert "training has changed" not in broken.output()
    files = [sorted(script.folder.rglob("*.ckpt")) for script in (expected, broken)]
    assert [len({path.parent for path in script}) for script in files] == [1, 1]
    names = list_names(expected, broken)
    assert names[0] == names[1] == ["epoch=2-step=15.ckpt", "epoch=3-step=20.ckpt", *others]
    for first, second in zip(*files, strict=True):
        weights = [torch.load(path, weights_only=False)["state_dict"] for path in (first, second)]
        for name, value in weights[0].items():
            assert torch.equal(weights[1][name], value), name


def test_files_match_plain_lightning(tmp_path: Path) -> None:
    names = list_names(*run_alone(tmp_path, "best-every-2"))
    assert names[0] == names[1] == ["epoch=1-step=10.ckpt", "epoch=3-step=20.ckpt"]


def test_files_before_first_checkpoint_are_overwritten(tmp_path: Path) -> None:
    expected, broken = (
        make_script(tmp_path / name, "lightning", "best-early") for name in ("whole", "broken")
    )
    expected.finish()
    broken.interrupt(2)
    assert (broken.folder / "best" / "last.ckpt").exists()
    names = list_names(expected, broken.finish())
    assert names[0] == names[1] == ["epoch=3-step=20.ckpt", "last.ckpt"]


def test_optimizer_created_in_training_is_rejected(tmp_path: Path) -> None:
    script = make_script(tmp_path / "script", "accelerate", "new-optimizer")
    assert script.run() == 3
    expected = "training started with AdamW, and the script has AdamW, SGD now"
    assert expected in script.output(), script.output()
