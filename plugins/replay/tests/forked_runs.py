"""Trials and replays in forked processes, which run worker code without repeated imports."""

from __future__ import annotations

import datetime
import os
import shutil
import sys
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any, cast

from faults import BATCH_SIZE, EXTENDER, Fault
from toy_command import TOY_PLUGIN

from detcore.checkpoint import list_committed, read_manifest
from detcore.config import load_mapping
from detcore.data import read_digests
from detcore.environment import child_environment, read_environment
from detcore.launch import worker
from detcore.plugins import PluginManager
from detcore.plugins.delivery import write_run
from detcore.records import CheckpointRecord
from detcore.storage import LocalStorage
from detcore.types import TrialInfo
from detcore_replay.recorded_runs import Run
from detcore_replay.training import replay_process
from detcore_replay.training.step_replay import Replay, Replayer
from detcore_testing.processes import fork_call, wait_for_child

__all__ = ["ForkedReplayer", "make_run"]

_SECONDS = 300.0
# Directory of additional packages of a run and its replays.
_SITE = "TEST_SITE"


class Child:
    """A forked process with other variables and directory, whose output goes to a file."""

    def __init__(
        self, function: Callable[[], int], output: Path, cwd: Path, environment: Mapping[str, str]
    ) -> None:
        def run() -> int:
            descriptor = os.open(output, os.O_WRONLY | os.O_CREAT, 0o600)
            os.dup2(descriptor, 1)
            os.dup2(descriptor, 2)
            os.chdir(cwd)
            sys.path.insert(0, environment.get(_SITE, ""))
            os.environ.clear()
            os.environ.update(environment)
            return function()

        self._pid = fork_call(run)
        self._code: int | None = None

    def wait(self) -> int:
        if self._code is None:
            self._code = wait_for_child(self._pid, _SECONDS)
        return self._code

    def poll(self) -> int | None:
        return self._code

    def kill(self) -> None:
        if self._code is None:
            os.kill(self._pid, 9)


class _Command:
    """The command settings that a replay reads."""

    def __init__(self, home: Path) -> None:
        self.environment = read_environment({"DETCORE_HOME": str(home)})

    def plugin_manager(self) -> PluginManager:
        return PluginManager(self.environment)


class ForkedReplayer(Replayer):
    """Replays in forked processes, with checkpoints from a local directory."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        scratch.mkdir()
        super().__init__(cast("Any", _Command(folder)), cast("Any", None), scratch)
        self._site = ""

    def start(self, run: Run, *, after: int, stop: int, saved: Collection[int] = ()) -> Replay:
        self._site = str(Path(run.info.model_dir).parent / "site")
        return super().start(run, after=after, stop=stop, saved=saved)

    def _spawn_process(self, words: list[str], code: Path, environment: dict[str, str]) -> Any:
        folder, start, stop, saved_steps = words
        steps = {int(word) for word in saved_steps.split(",") if word}
        return Child(
            lambda: replay_process.main(Path(folder), int(start), int(stop), steps),
            Path(folder) / "output.txt",
            code,
            {**environment, _SITE: self._site},
        )

    def _download_checkpoint(self, record: CheckpointRecord, folder: Path) -> None:
        shutil.copytree(Path(record.storage_url) / record.uuid, folder)


def make_run(folder: Path, fault: Fault, num_steps: int, **changes: Any) -> Run:
    """Train a trial with a fault in an empty directory.

    Args:
        folder: Directory of its code, checkpoints and digests.
        fault: The fault in its code or its settings.
        num_steps: Number of steps. A unit is a tenth of them, and a checkpoint follows every second
            unit.
        changes: Changes of the experiment file.
    """
    for name in ("code", "checkpoints", "trial", "home", "site"):
        (folder / name).mkdir(parents=True)
    version = "2.0" if fault.kind == "library version" else "1.0"
    (folder / "code" / "model_def.py").write_text(fault.model())
    (folder / "code" / "numerics.py").write_text(f'__version__ = "{version}"')
    for name, text in EXTENDER.items() if fault.kind == "plugin" else ():
        (folder / "site" / name).parent.mkdir(exist_ok=True)
        (folder / "site" / name).write_text(text)
    info = _trial_info(folder, fault, num_steps, changes)
    threads = "3" if fault.kind == "thread count" else "1"
    variables = {
        "DETCORE_HOME": str(folder / "home"),
        "DETCORE_TRIAL_INFO": str(write_run(info)),
        "OMP_NUM_THREADS": threads,
        _SITE: str(folder / "site"),
    }
    child = Child(worker.main, folder / "output.txt", folder / "code", child_environment(variables))
    assert child.wait() == 0, (folder / "output.txt").read_text()
    return Run(
        label=f"trial {folder.name}",
        info=info,
        digests=read_digests(folder / "trial"),
        checkpoints=_checkpoints(folder / "checkpoints"),
        last_step=num_steps,
        framework="torch" if fault.is_torch else "toy",
    )


def _trial_info(
    folder: Path, fault: Fault, num_steps: int, changes: Mapping[str, Any]
) -> TrialInfo:
    if str(TOY_PLUGIN) not in sys.path:
        sys.path.insert(0, str(TOY_PLUGIN))
    rate = 0.05 * (1 + 1e-6) if fault.kind == "hyperparameter" else 0.05
    storage = {"type": "directory", "container_path": str(folder / "checkpoints")}
    plugins = _Command(folder).plugin_manager()
    config = load_mapping(
        {
            "entrypoint": "model_def:Line",
            "hyperparameters": {"learning_rate": rate, "global_batch_size": BATCH_SIZE},
            "searcher": {
                "name": "single", "metric": "val_loss", "max_length": {"batches": num_steps}
            },
            "scheduling_unit": num_steps // 10,
            "min_checkpoint_period": {"batches": num_steps // 5},
            "checkpoint_async": False,
            "reproducibility": {"experiment_seed": 7, "step_digests": 1},
            "checkpoint_storage": storage,
            **changes,
        },
        models=plugins.settings_models(),
    ).config  # fmt: skip
    plain = config.model_dump(mode="json")
    return TrialInfo(
        experiment_id=1,
        trial_id=1,
        run_id=1,
        trial_seed=7,
        hparams=plain["hyperparameters"],
        config=plain,
        model_dir=str(folder / "code"),
        trial_dir=str(folder / "trial"),
        settings=config.trial_settings(),
        code_dir=str(folder / "code"),
    )


def _checkpoints(folder: Path) -> tuple[CheckpointRecord, ...]:
    storage = LocalStorage(folder)
    manifests = [read_manifest(storage, uuid) for uuid in list_committed(storage)]
    now = datetime.datetime.now(datetime.timezone.utc)
    return tuple(
        CheckpointRecord(
            uuid=manifest_record.uuid,
            trial_id=1,
            experiment_id=1,
            storage_url=str(folder),
            state="COMPLETED",
            steps_completed=manifest_record.steps_completed,
            metadata={},
            resources={},
            started_at=now,
            committed_at=now,
            deleted_at=None,
        )
        for manifest_record in sorted(manifests, key=lambda manifest: manifest.steps_completed)
    )
