"""Event files, as TensorBoard reads them, which checks their checksums."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from processes import run_python
from tensorboard.backend.event_processing import event_accumulator
from toy_command import MODEL_DIR, Detcore

from detcore import core
from detcore.core.tensorboard_events import EventFile
from detcore.errors import StorageError


def test_reports_become_events(alone: Callable[..., core.Context]) -> None:
    with alone() as context:
        folder = context.train.get_tensorboard_path()
        assert list(folder.iterdir()) == []
        assert context.train.get_tensorboard_path() == folder
        context.train.report_training_metrics(
            128, {"loss": 0.5, "größe": 2.0}, [{"loss": 1.0}] * 100
        )
        context.train.report_validation_metrics(
            300, {"accuracy": 0.25, "val_loss": float("inf"), "big": 1e300}
        )
        context.train.report_training_metrics(400, {})
    (path,) = folder.iterdir()
    assert path.name.startswith("events.out.tfevents.")
    assert accumulated(folder) == {
        "detcore/loss": [(128, 0.5)],
        "detcore/größe": [(128, 2.0)],
        "detcore/val_accuracy": [(300, 0.25)],
        "detcore/val_loss": [(300, float("inf"))],
        "detcore/val_big": [(300, float("inf"))],
    }


def accumulated(folder: Path) -> dict[str, list[tuple[int, float]]]:
    """Return what TensorBoard shows: tags, and their steps and values."""
    events = event_accumulator.EventAccumulator(str(folder)).Reload()
    return {
        tag: [(event.step, event.value) for event in events.Scalars(tag)]
        for tag in events.Tags()["scalars"]
    }


def test_tensorboard_shows_killed_script(home: Any) -> None:
    process = home.start(
        "import os, signal\nfrom detcore import core\n"
        "with core.init() as context:\n"
        "    for step in range(1, 51):\n"
        "        context.train.report_training_metrics(step, {'loss': 1 / 2**(step % 5)})\n"
        "    context.train.report_validation_metrics(50, {'accuracy': 0.5})\n"
        "    os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    process.communicate(timeout=60)
    (folder,) = home.path.glob("experiments/1/trials/1/tensorboard")
    assert accumulated(folder) == {
        "detcore/loss": [(step, 1 / 2 ** (step % 5)) for step in range(1, 51)],
        "detcore/val_accuracy": [(50, 0.5)],
    }


def test_tensorboard_shows_trial_of_any_framework(tmp_path: Path) -> None:
    with Detcore(tmp_path) as detcore:
        result = detcore("run", detcore.config(), MODEL_DIR, "--json")
        assert result.code == 0, result.stderr
        (folder,) = detcore.home.glob("experiments/1/trials/1/tensorboard")
        scalars = accumulated(folder)
    assert [step for step, _ in scalars["detcore/loss"]] == list(range(5, 41, 5))
    assert [step for step, _ in scalars["detcore/val_loss"]] == [10, 20, 30, 40]


def test_unwritable_event_folder_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StorageError, match=r"cannot be written.*\n.*TensorboardMode.MANUAL"):
        EventFile(tmp_path / "file" / "x").add_scalars(1, {"loss": 1.0})


def test_full_disk_keeps_event_file_intact(tmp_path: Path) -> None:
    code = f"""
import resource
from pathlib import Path
from detcore.core.tensorboard_events import EventFile
from detcore.errors import StorageFullError
file = EventFile(Path({str(tmp_path)!r}))
file.add_scalars(1, {{"loss": 1.0}})
resource.setrlimit(resource.RLIMIT_FSIZE, (200, resource.RLIM_INFINITY))
try:
    file.add_scalars(2, {{f"metric-{{index}}": 1.0 for index in range(50)}})
except StorageFullError:
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    file.add_scalars(3, {{"loss": 3.0}})
"""
    run_python(code)
    assert accumulated(tmp_path) == {"loss": [(1, 1.0), (3, 3.0)]}
