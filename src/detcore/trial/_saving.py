"""Checkpoints of a trial: one folder, to which every worker may add."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.errors import InvalidCheckpointError
from detcore.trial._code import copy_code

if TYPE_CHECKING:
    from detcore.core import Context
    from detcore.distributed import DistributedContext
    from detcore.trial._controller import LoopingController, SteppingController

__all__ = ["CLOCK_FILE", "TRIAL_FILE", "TrialSaver", "own_folder", "read_clock"]

CLOCK_FILE = "clock.json"
TRIAL_FILE = "trial.json"
_WORKERS = "workers"


class TrialSaver:
    """Saves a trial's checkpoints.

    The chief writes the checkpoint's folder. What the controllers of other workers save comes to
    it over the `DistributedContext` and is put into ``workers/<rank>/``, so that it makes no
    difference whether the workers share a disk.

    Args:
        core: The trial's context.
        record: Content of ``trial.json``.
        code_dir: Folder of the user's code.
        code_files: Files in it that each checkpoint gets a copy of, relative to it.
    """

    def __init__(
        self,
        core: Context,
        *,
        record: Mapping[str, Any],
        code_dir: Path,
        code_files: Sequence[str],
    ) -> None:
        self._core = core
        self._record = record
        self._code_dir = code_dir
        self._code_files = code_files

    def save(
        self,
        controller: LoopingController | SteppingController,
        *,
        steps_completed: int,
        clock: Mapping[str, Any],
    ) -> None:
        """Save a checkpoint; all workers call it at the same batch.

        Args:
            controller: This worker's.
            steps_completed: Batches completed.
            clock: What the clock has to remember.
        """
        distributed = self._core.distributed
        if distributed.rank:
            distributed.gather(_save_to_memory(controller))
            return
        record = dict(self._record, steps_completed=steps_completed)
        metadata = {"steps_completed": steps_completed, "framework": record.get("framework")}
        with self._core.checkpoint.store_path(metadata) as (path, _uuid):
            controller.save(path)
            _write_json(path / CLOCK_FILE, {"version": 1, "workers": distributed.size, **clock})
            _write_json(path / TRIAL_FILE, record)
            copy_code(self._code_dir, self._code_files, path / "code")
            files = distributed.gather(dict[str, bytes]()) or []
            for rank, contents in enumerate(files[1:], 1):
                _write_files(path / _WORKERS / str(rank), contents)


def read_clock(directory: Path, uuid: str) -> dict[str, Any]:
    """Return what the clock remembered in a checkpoint.

    Raises:
        InvalidCheckpointError: If it is not a trial's checkpoint.
    """
    clock_file = directory / CLOCK_FILE
    if not clock_file.exists():
        raise InvalidCheckpointError(
            f"checkpoint {uuid} has no {CLOCK_FILE}: it was not written by "
            "a trial of this program, so training cannot go on from it"
        )
    state: dict[str, Any] = json.loads(clock_file.read_text(encoding="utf-8"))
    return state


def own_folder(directory: Path, distributed: DistributedContext) -> Path | None:
    """Return the folder with what this worker saved in a checkpoint.

    Args:
        directory: The checkpoint.
        distributed: The workers that there are now.

    Returns:
        The checkpoint itself on the chief, ``workers/<rank>`` in it elsewhere; None if it was
        saved by another number of workers.
    """
    clock_file = directory / CLOCK_FILE
    # A controller may be tested without a clock, on one worker.
    clock = json.loads(clock_file.read_text(encoding="utf-8")) if clock_file.exists() else {}
    if clock.get("workers", 1) != distributed.size:
        return None
    return directory / _WORKERS / str(distributed.rank) if distributed.rank else directory


def _save_to_memory(controller: LoopingController | SteppingController) -> dict[str, bytes]:
    with tempfile.TemporaryDirectory(prefix="detcore-worker-") as name:
        folder = Path(name)
        controller.save(folder)
        return {
            path.relative_to(folder).as_posix(): path.read_bytes()
            for path in sorted(folder.rglob("*"))
            if path.is_file()
        }


def _write_files(folder: Path, contents: Mapping[str, bytes]) -> None:
    folder.mkdir(parents=True)
    for name, data in contents.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)


def _write_json(path: Path, value: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")
