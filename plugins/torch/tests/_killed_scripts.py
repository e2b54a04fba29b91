"""Scripts that are killed at seeded random steps, run in processes forked from this one."""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import random
import runpy
import signal
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook

from detcore.database import Database


@dataclasses.dataclass
class Script:
    """A script, its own ``DETCORE_HOME``, and its processes so far.

    Attributes:
        path: Its file. A global variable ``trained`` has its objects by name, or ``trainer`` is
            the trainer of transformers.
        folder: For everything that it writes.
        arguments: Its arguments.
    """

    path: Path
    folder: Path
    arguments: Sequence[str] = ()

    def run(self, kill_at: int | None = None, number: int = signal.SIGKILL) -> int:
        """Run the script in a new process; return its exit code, negative after a signal.

        Args:
            kill_at: The optimizer's step, counted in this process, before which it is signalled.
            number: The signal.
        """
        self.folder.mkdir(exist_ok=True)
        sys.stdout.flush()
        pid = os.fork()
        if pid == 0:
            self._run_child(kill_at, number)
        _, status = os.waitpid(pid, 0)
        return os.waitstatus_to_exitcode(status)

    def run_killed(self, seed: int, *, kills: int, at_most: int) -> None:
        """Kill the script that many times at random steps, every other time with SIGTERM."""
        draw = random.Random(seed)
        for kill in range(kills):
            number = signal.SIGTERM if kill % 2 else signal.SIGKILL
            code = self.run(draw.randint(1, at_most), number)
            assert code == (75 if number == signal.SIGTERM else -signal.SIGKILL), self.output()
        assert self.run() == 0, self.output()

    def output(self) -> str:
        """Return what its processes printed."""
        return (self.folder / "output.txt").read_text()

    def result(self) -> dict[str, str]:
        """Return the digests of the trainer's objects, and of random generators."""
        found: dict[str, str] = json.loads((self.folder / "result.json").read_text())
        return found

    def metrics(self, kind: str) -> list[tuple[int, dict[str, Any]]]:
        """Return step and metrics of all reports of a kind ("training" or "validation")."""
        with Database.open(f"sqlite:///{self.folder}/home/detcore.db") as database:
            reports = database.metrics(1, kind)
            return [(each.steps_completed, dict(each.metrics)) for each in reports]

    def checkpoint_files(self) -> set[str]:
        """Return the names of all files in its checkpoints; a save that was killed left none."""
        manifests = (self.folder / "home" / "checkpoints").glob("*/manifest.json")
        folders = [manifest.parent for manifest in manifests]
        assert folders
        return {path.name for each in folders for path in each.rglob("*") if path.is_file()}

    def _run_child(self, kill_at: int | None, number: int) -> None:
        code = 3
        try:
            output = (self.folder / "output.txt").open("a", buffering=1)
            os.dup2(output.fileno(), 1)
            os.dup2(output.fileno(), 2)
            sys.stdout = sys.stderr = output  # pytest has replaced both
            os.chdir(self.folder)
            os.environ["DETCORE_HOME"] = str(self.folder / "home")
            warnings.resetwarnings()  # warnings of a script are not errors
            sys.argv[:] = [str(self.path), *self.arguments]
            sys.path.insert(0, str(self.path.parent))
            _signal_at(kill_at, number)
            objects = runpy.run_path(sys.argv[0], run_name="__main__")
            Path("result.json").write_text(json.dumps(digests(_trained(objects))))
            code = 0
        except SystemExit as ended:
            code = int(ended.code or 0)
        except BaseException:  # noqa: BLE001  # the end of the process: printed, never dropped
            import traceback

            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)


def _signal_at(step: int | None, number: int) -> None:
    """Have this process send itself a signal before a step of any optimizer."""
    if step is None:
        return
    count = 0

    def before_step(*_: Any) -> None:
        nonlocal count
        count += 1
        if count == step:
            os.kill(os.getpid(), number)
            time.sleep(0.01)

    register_optimizer_step_pre_hook(before_step)


def _trained(variables: Mapping[str, Any]) -> dict[str, Any]:
    if "trained" in variables:
        return dict(variables["trained"])
    trainer = variables["trainer"]
    return {name: getattr(trainer, name) for name in ("model", "optimizer", "lr_scheduler")}


def digests(trained: Mapping[str, Any]) -> dict[str, str]:
    """Return a digest of the state of each object, and of this process's random generators."""
    found = {name: _digest(each.state_dict()) for name, each in trained.items()}
    found["torch"] = _digest(torch.get_rng_state())
    found["numpy"] = _digest(list(np.random.get_state()))
    found["python"] = _digest(list(random.getstate()))
    return found


def _digest(state: Any) -> str:
    hashed = hashlib.sha256()
    _add(state, hashed)
    return hashed.hexdigest()[:16]


def _add(value: Any, hashed: Any) -> None:
    if isinstance(value, Mapping):
        for key, item in value.items():
            hashed.update(repr(key).encode())
            _add(item, hashed)
    elif isinstance(value, list | tuple):
        for item in value:
            _add(item, hashed)
    elif isinstance(value, torch.Tensor):
        hashed.update(value.detach().contiguous().numpy().tobytes())
    elif isinstance(value, np.ndarray):
        hashed.update(value.tobytes())
    elif not callable(value):
        hashed.update(repr(value).encode())
