"""Programs in the style of Determined's releases are migrated, killed and resumed."""

from __future__ import annotations

import json
import shutil
import signal
from pathlib import Path

import pytest

from detcore_testing import DetcoreCommand

PROGRAMS = Path(__file__).parent / "determined_code"
KILL = "TEST_KILL_AT"


def migrate(detcore: DetcoreCommand, name: str) -> Path:
    """Return a directory with a migrated program, which needs no change by hand."""
    folder = detcore.folder / "code"
    folder.mkdir()
    shutil.copy(PROGRAMS / "toy_data.py", folder)
    shutil.copy(PROGRAMS / f"{name}.py", folder / "model_def.py")
    assert detcore("migrate", folder).code == 0
    checked = detcore("migrate", "--check", folder)
    assert checked.code == 0, checked.output
    assert "determined" not in (folder / "model_def.py").read_text().partition('"""\n')[2]
    return folder


def read_state(folder: Path) -> dict[str, bytes]:
    """Return the files with the training state."""
    names = ("optimizer.json", "torch.json", "worker.json")
    paths = [*folder.glob("*.safetensors"), *map(folder.joinpath, names)]
    return {path.name: path.read_bytes() for path in paths}


def train(folder: Path, name: str, *, kill_at: int | None) -> dict[str, bytes]:
    """Migrate and train a program, kill it at an update if requested, and resume it."""
    variables = {} if kill_at is None else {KILL: str(kill_at)}
    with DetcoreCommand(folder, variables=variables) as detcore:
        code = migrate(detcore, name)
        config = detcore.write_config({
            "name": name,
            "entrypoint": "python3 model_def.py" if name == "trainer" else "model_def:Trial",
            "hyperparameters": {"global_batch_size": 4, "learning_rate": 0.05, "dropout": 0.2},
            "searcher": {"name": "single", "metric": "validation_loss",
                         "max_length": {"epochs": 2}},
            "min_checkpoint_period": {"batches": 3},
            "scheduling_unit": 2,
            "reproducibility": {"experiment_seed": 5},
            "max_restarts": 0,
        })  # fmt: skip
        finished = detcore("run", config, code, "--json")
    if kill_at is not None:
        assert "SIGKILL" in finished.output, finished.output
        with DetcoreCommand(folder) as detcore:
            finished = detcore("run", "--resume", 1, "--json")
        assert "trial 1: from batch " in finished.output, finished.output
    assert finished.code == 0, finished.output
    assert "cannot hold" not in finished.output, finished.output
    for text in EXPECTED.get(name, ()):
        assert text in finished.output, finished.output
    (trial,) = finished.summary["trials"]
    with DetcoreCommand(folder) as detcore:
        detcore("checkpoint", "download", trial["latest_checkpoint"], "-o", folder / "last")
        events = list(detcore.home.glob("experiments/*/**/*tfevents*"))
    assert events
    return read_state(folder / "last")


EXPECTED = {
    "checkpoint_hooks": (" exists\n", "validated: ['validation_loss']"),
    "multi_output": ("use_amp has no effect", "set_profiler has no effect"),
}
NAMES = sorted(path.stem for path in PROGRAMS.glob("*.py") if path.stem != "toy_data")


@pytest.mark.parametrize("name", NAMES)
def test_killed_program_ends_like_uninterrupted(tmp_path: Path, name: str) -> None:
    expected = train(tmp_path / "whole", name, kill_at=None)
    assert len(expected) >= 4
    # The second save has waited for the first. A GAN updates twice in a batch, and the script saves
    # at batches 5 and 10.
    kill_at = 15 if name in ("gan", "trainer") else 9
    assert train(tmp_path / "killed", name, kill_at=kill_at) == expected


def test_trainer_script_resumes_alone(tmp_path: Path) -> None:
    states = []
    for folder, kills in ((tmp_path / "whole", ()), (tmp_path / "killed", (12, 12))):
        with DetcoreCommand(folder) as detcore:
            script = migrate(detcore, "trainer") / "model_def.py"
        for kill_at in kills:
            with DetcoreCommand(folder, variables={KILL: str(kill_at)}) as detcore:
                assert detcore.python(script).code == -signal.SIGKILL
        with DetcoreCommand(folder) as detcore:
            finished = detcore.python(script)
            assert finished.code == 0, finished.output
            assert ("from the start" in finished.output) is not bool(kills), finished.output
            assert "cannot hold" not in finished.output, finished.output
            checkpoints = json.loads(detcore("checkpoint", "list", "--json").stdout)
            last = max(checkpoints, key=lambda checkpoint: checkpoint["steps_completed"])
            assert last["steps_completed"] == 24
            detcore("checkpoint", "download", last["uuid"], "-o", folder / "last")
        states.append(read_state(folder / "last"))
    assert states[0] == states[1]
