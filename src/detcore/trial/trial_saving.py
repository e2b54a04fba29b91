"""Save a trial's checkpoints, to which every worker may contribute files."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.checkpoint.restore_audit import audited
from detcore.contract.controllers import SupportsSnapshot, SupportsTensors
from detcore.contract.errors import InvalidCheckpointError
from detcore.contract.trial import CLOCK_FILE, TRIAL_FILE, WORKERS_DIRECTORY
from detcore.storage import scratch_directory
from detcore.trial.code_copy import copy_code

if TYPE_CHECKING:
    from detcore.contract.controllers import SavesState
    from detcore.contract.values import TensorInfo, TrialInfo
    from detcore.core import Context


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialSaver:
    """Saves a trial's checkpoints.

    The chief writes the checkpoint's directory. Other workers send the files of their controllers
    over the `DistributedContext` to the chief, which writes them to ``workers/<rank>/``. The
    workers therefore need no shared disk.

    With asynchronous saves, training continues once the controller has copied its state, or has
    written it if it has no `snapshot` method. All small files are written immediately.

    Attributes:
        core: The trial's context.
        record: Content of ``trial.json``.
        code_dir: Directory of the user's code.
        code_files: Files in it to copy into each checkpoint, relative to it.
        config: The experiment's configuration, whose secrets are masked in these copies. None if
            the files in `code_dir` are already masked.
        is_async: Whether training continues while a checkpoint is written and uploaded.
    """

    core: Context
    record: Mapping[str, object]
    code_dir: Path
    code_files: Sequence[str]
    config: Mapping[str, Any] | None
    is_async: bool

    def save(
        self,
        controller: SavesState,
        *,
        steps_completed: int,
        clock: Mapping[str, Any],
        has_deadline: bool = False,
    ) -> None:
        """Save a checkpoint. All workers must call it at the same batch.

        Args:
            controller: This worker's controller, or another object that writes the state.
            steps_completed: Batches completed.
            clock: State of the clock.
            has_deadline: Whether a kill has been announced. The save is then always asynchronous,
                so that waiting for the upload can be cut short.
        """
        distributed = self.core.distributed
        if distributed.rank:
            distributed.gather(_save_to_memory(self._choose_writer(controller)))
            return
        write = self._choose_writer(controller)
        record = dict(self.record, steps_completed=steps_completed)
        metadata = {"steps_completed": steps_completed, "framework": record.get("framework")}

        def snapshot(path: Path) -> Callable[[], None] | None:
            write_rest = write(path)
            _write_json(path / CLOCK_FILE, {"version": 1, "workers": distributed.size, **clock})
            _write_json(path / TRIAL_FILE, record)
            copy_code(self.code_dir, self.code_files, path / "code", config=self.config)
            files = distributed.gather(dict[str, bytes]()) or []
            for rank, contents in enumerate(files[1:], 1):
                _write_files(path / WORKERS_DIRECTORY / str(rank), contents)
            return write_rest

        def tensors() -> Sequence[TensorInfo]:
            return controller.tensors() if isinstance(controller, SupportsTensors) else ()

        checkpoint = self.core.checkpoint
        if self.is_async or has_deadline:
            checkpoint.save_async(snapshot, metadata, tensors=tensors)
            return
        with checkpoint.store_path(metadata, tensors=tensors) as (path, _uuid):
            snapshot(path)

    def _choose_writer(self, controller: SavesState) -> Callable[[Path], Callable[[], None] | None]:
        """Return the method that copies the controller's state; the same on all workers."""
        if self.is_async and isinstance(controller, SupportsSnapshot):
            return audited(controller, controller.snapshot)
        return audited(controller, controller.save)


def build_trial_record(info: TrialInfo, framework: str, trial_class: str) -> dict[str, object]:
    """Return the description of a trial for its checkpoints.

    Args:
        info: The trial.
        framework: Registered name of the framework that trains it.
        trial_class: Import path of its class.
    """
    from detcore.masking import mask_config

    return {
        "version": 1,
        "framework": framework,
        "trial_class": trial_class,
        "experiment_id": info.experiment_id,
        "trial_id": info.trial_id,
        "trial_seed": info.trial_seed,
        "hparams": dict(info.hparams),
        # A checkpoint may be given to users who must not have the storage credentials.
        "config": mask_config(dict(info.config)),
    }


def read_clock(directory: Path, uuid: str) -> dict[str, Any]:
    """Return the state of the clock in a checkpoint.

    Raises:
        InvalidCheckpointError: If the checkpoint was not written by a trial.
    """
    clock_file = directory / CLOCK_FILE
    if not clock_file.exists():
        raise InvalidCheckpointError(
            f"checkpoint {uuid} has no {CLOCK_FILE}: it was not written by a detcore trial, so "
            "training cannot resume from it.\n"
            "Resume from another checkpoint:  detcore checkpoint list"
        )
    state: dict[str, Any] = json.loads(clock_file.read_text(encoding="utf-8"))
    return state


def _save_to_memory(
    write: Callable[[Path], Callable[[], None] | None],
) -> dict[str, bytes]:
    with scratch_directory() as folder:
        write_rest = write(folder)
        if write_rest is not None:
            write_rest()
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
