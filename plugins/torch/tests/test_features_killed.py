"""Features of libraries in scripts that are killed early, in the middle, and late."""

from __future__ import annotations

import importlib
import signal
from collections.abc import Sequence
from pathlib import Path

import pytest
import torch
from _killed_scripts import KILL_AT_END, Kill, Script, check_equal, run_pair

SCRIPTS = Path(__file__).parent / "scripts"

pytestmark = pytest.mark.timeout(600)


def make_script(folder: Path, library: str, case: str, *arguments: str) -> Script:
    importlib.import_module(f"detcore_torch.for_{library}")  # before processes are forked
    return Script(
        SCRIPTS / f"{library}_cases.py", folder, [f"--case={case}", "--epochs=4", *arguments]
    )


def run_case(
    folder: Path, library: str, case: str, kills: Sequence[int | Kill]
) -> tuple[Script, Script]:
    script = make_script(folder, library, case)
    return run_pair(script.path, folder, script.arguments, kills=kills)


@pytest.mark.parametrize(
    ("library", "case"),
    [
        ("accelerate", "finetune"),  # layers are unfrozen, and a group of parameters is added
        ("lightning", "average"),  # a callback that replaces the weights in Lightning's checkpoint
        pytest.param("accelerate", "lbfgs", marks=pytest.mark.soak),
        *(
            pytest.param("lightning", case, marks=pytest.mark.soak)
            for case in ("attributes", "filtered", "finetune", "lbfgs", "swa-norm")
        ),
    ],
)
def test_training_ends_as_without_kills(tmp_path: Path, library: str, case: str) -> None:
    check_equal(*run_case(tmp_path, library, case, [4, 6, 9]))


def test_gradients_that_no_optimizer_has_applied_are_restored(tmp_path: Path) -> None:
    check_equal(*run_case(tmp_path, "accelerate", "summed", [3, 2]))


@pytest.mark.soak
def test_metrics_of_an_epoch_are_those_of_a_run_without_kills(tmp_path: Path) -> None:
    """A rate depends on them; the model keeps them in a list, of which Lightning knows nothing."""
    runs = run_case(tmp_path, "lightning", "plateau-train", [4, 6, 9])
    check_equal(*runs)
    errors = [(each.folder / "errors.txt").read_text() for each in runs]
    assert errors[0] == errors[1]
    assert errors[0].count("(") == 4


@pytest.mark.soak
@pytest.mark.parametrize(
    "case", ["average", "finetune", "plateau", "stop", "stop-late", "swa", "swa-norm"]
)
def test_training_ends_as_with_lightning_alone(tmp_path: Path, case: str) -> None:
    alone, whole = (
        make_script(tmp_path / name, "lightning", case, *options)
        for name, options in (("alone", ["--alone"]), ("whole", []))
    )
    assert alone.run() == whole.run() == 0, alone.output() + whole.output()
    for name, digest in alone.result().items():
        # A validation restores the generators, unlike in Lightning.
        assert name in ("torch", "numpy", "python") or whole.result()[name] == digest, name


@pytest.mark.soak
@pytest.mark.parametrize("case", ["average", "plateau", "stop", "swa", "swa-norm"])
def test_a_run_killed_after_its_training_ends_as_without(tmp_path: Path, case: str) -> None:
    check_equal(*run_case(tmp_path, "lightning", case, [KILL_AT_END]))


@pytest.mark.soak
@pytest.mark.parametrize("case", ["average", "plateau", "stop"])
@pytest.mark.parametrize("step", [3, 5])  # a validation is due at 5
def test_a_preempted_run_ends_as_one_without_interruptions(
    tmp_path: Path, case: str, step: int
) -> None:
    whole, broken = (
        make_script(tmp_path / name, "lightning", case) for name in ("whole", "broken")
    )
    assert whole.run() == 0, whole.output()
    assert broken.run(step, signal.SIGTERM) == 75, broken.output()
    assert broken.run() == 0, broken.output()
    check_equal(whole, broken)


@pytest.mark.soak
@pytest.mark.parametrize(
    ("case", "others"),
    [("best", ["last.ckpt"]), ("best-logged", [])],  # the other in a folder of its logger
)
def test_the_best_files_are_those_of_a_run_without_kills(
    tmp_path: Path, case: str, others: list[str]
) -> None:
    whole, broken = run_case(tmp_path, "lightning", case, [4, 6, 9])
    files = [sorted(each.folder.rglob("*.ckpt")) for each in (whole, broken)]
    assert [len({path.parent for path in each}) for each in files] == [1, 1]
    names = [[path.name for path in each] for each in files]
    assert names[0] == names[1] == ["epoch=2-step=15.ckpt", "epoch=3-step=20.ckpt", *others]
    for first, second in zip(*files, strict=True):
        weights = [torch.load(path, weights_only=False)["state_dict"] for path in (first, second)]
        for name, value in weights[0].items():
            assert torch.equal(weights[1][name], value), name


def test_files_are_those_of_lightning_alone(tmp_path: Path) -> None:
    alone = make_script(tmp_path / "alone", "lightning", "best-every-2", "--alone")
    whole = make_script(tmp_path / "whole", "lightning", "best-every-2")
    assert alone.run() == whole.run() == 0, alone.output() + whole.output()
    names = [sorted(path.name for path in each.folder.rglob("*.ckpt")) for each in (alone, whole)]
    assert names[0] == names[1] == ["epoch=1-step=10.ckpt", "epoch=3-step=20.ckpt"]


def test_files_from_before_the_first_checkpoint_are_overwritten(tmp_path: Path) -> None:
    whole, broken = (
        make_script(tmp_path / name, "lightning", "best-early") for name in ("whole", "broken")
    )
    assert whole.run() == 0, whole.output()
    assert broken.run(2) == -signal.SIGKILL, broken.output()
    assert (broken.folder / "best" / "last.ckpt").exists()
    assert broken.run() == 0, broken.output()
    names = [sorted(path.name for path in each.folder.rglob("*.ckpt")) for each in (whole, broken)]
    assert names[0] == names[1] == ["epoch=3-step=20.ckpt", "last.ckpt"]


def test_an_optimizer_made_during_training_is_refused_before_a_checkpoint(tmp_path: Path) -> None:
    script = make_script(tmp_path / "script", "accelerate", "new-optimizer")
    assert script.run() == 3
    expected = "training started with AdamW, and the script has AdamW, SGD now"
    assert expected in script.output(), script.output()
