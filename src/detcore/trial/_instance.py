"""Read checkpoints in a folder of the caller; manage those of a trial made for debugging."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.controllers import SupportsTensors, ValidationResult
from detcore.contract.errors import CheckpointNotFoundError, InvalidCheckpointError
from detcore.trial._code import copy_code
from detcore.trial._resolve import import_object
from detcore.trial._saving import TRIAL_FILE

if TYPE_CHECKING:
    from detcore.checkpoint import Manifest
    from detcore.contract.controllers import LoopingController, SteppingController
    from detcore.contract.trial import Trial, TrialContext
    from detcore.contract.values import Framework
    from detcore.storage import StorageBackend

__all__ = ["InstanceCheckpoints", "InstanceRecord", "checkpoint_folder", "read_trial_file"]


def checkpoint_folder(path: str | os.PathLike[str]) -> Path:
    """Return the folder of a downloaded checkpoint.

    Raises:
        CheckpointNotFoundError: If the folder does not exist.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointNotFoundError(
            f"there is no folder {folder}.\n"
            "The path is that of a checkpoint's folder, as Checkpoint.download() returns it:\n"
            "  detcore checkpoint download UUID"
        )
    return folder


def read_trial_file(folder: Path, framework: str) -> dict[str, Any]:
    """Return the description of a trial in a checkpoint of one framework, its ``trial.json``.

    Args:
        folder: The checkpoint's folder.
        framework: Registered name of the framework that has to have written it.

    Returns:
        ``trial_class`` (import path), ``framework``, ``hparams`` and ``config``, among others. The
        configuration holds the trial's values as ``hyperparameters``.

    Raises:
        InvalidCheckpointError: If there is no such file, if it is damaged, or if another framework
            wrote it.
    """
    path = folder / TRIAL_FILE
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        written_by, trial_class = record["framework"], record["trial_class"]
        record["config"] = {**record["config"], "hyperparameters": dict(record["hparams"])}
    except FileNotFoundError as error:
        raise InvalidCheckpointError(
            f"{folder} has no {TRIAL_FILE}, so it is no checkpoint of a trial.\n"
            "Weights that another program saved are loaded with the framework itself."
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidCheckpointError(
            f"{path} is damaged: {error!r}.\nDownload the checkpoint again."
        ) from error
    if written_by != framework:
        raise InvalidCheckpointError(
            f"{folder} is a checkpoint of the framework {written_by!r} (trial class "
            f"{trial_class}), not of {framework!r}.\n"
            "Each framework's plugin loads its own checkpoints."
        )
    return record


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class InstanceRecord:
    """Description of such a trial in its checkpoints.

    Attributes:
        entrypoint: Import path of the trial class.
        code_dir: Folder of the code.
        code_files: Files in it to copy into each checkpoint, relative to it.
        versions: Versions of the software, by distribution.
    """

    entrypoint: str
    code_dir: Path
    code_files: Sequence[str]
    versions: Mapping[str, str]


class InstanceCheckpoints:
    """The checkpoints of a trial that was made for debugging; its context's ``checkpoints``.

    The trial's data and model are built on first use. Use it from one thread at a time.

    Args:
        directory: A folder of checkpoints, or one checkpoint.
        trial: The trial.
        context: Its context.
        framework: The framework that trains it.
        record: Returns its description; called for each save.
    """

    def __init__(
        self,
        directory: Path,
        *,
        trial: Trial,
        context: TrialContext,
        framework: Framework,
        record: Callable[[], InstanceRecord],
    ) -> None:
        self.directory = directory
        self._trial = trial
        self._context = context
        self._framework = framework
        self._record = record
        self._controller: LoopingController | SteppingController | None = None
        self._steps_completed = 0

    @property
    def latest(self) -> Path | None:
        """The newest checkpoint in the folder, or the folder if it is one; else None."""
        found = [(manifest.created, uuid) for uuid, manifest in self._committed()]
        if found:
            return self.directory / max(found)[1]
        return self.directory if (self.directory / TRIAL_FILE).is_file() else None

    def restore(self, checkpoint: str | os.PathLike[str] | None = None) -> Path:
        """Restore the whole training state into the trial's model, data and random generators.

        Args:
            checkpoint: A checkpoint's folder; default: `latest`.

        Returns:
            The checkpoint's folder.

        Raises:
            CheckpointNotFoundError: If no checkpoint is found.
            InvalidCheckpointError: If it does not fit the trial.
        """
        folder = Path(checkpoint) if checkpoint is not None else self.latest
        if folder is None or not folder.is_dir():
            raise CheckpointNotFoundError(
                f"there is no checkpoint {folder if folder is not None else f'in {self.directory}'}"
                ".\nPut one there (detcore checkpoint download UUID), or save one with "
                "context.checkpoints.save()."
            )
        self._built().restore(folder)
        self._steps_completed = _steps_of(folder)
        return folder

    def save(self, steps_completed: int | None = None) -> Path:
        """Save the whole training state as a new checkpoint in the folder.

        It can be loaded like a run's checkpoint, and a run can start from it
        (``searcher.source_checkpoint_uuid: FOLDER``).

        Args:
            steps_completed: Batches trained, for its records; default: those of the restored
                checkpoint, else 0.

        Returns:
            The checkpoint's folder.
        """
        controller = self._built()
        record = self._record()
        steps = self._steps_completed if steps_completed is None else steps_completed
        with self._storage() as storage:
            from detcore.checkpoint import CheckpointContext

            context = CheckpointContext(storage=storage, distributed=self._context.distributed)
            context.versions.update(record.versions)
            metadata = {"steps_completed": steps, "framework": self._framework.name}

            def tensors() -> Any:
                return controller.tensors() if isinstance(controller, SupportsTensors) else ()

            with context.store_path(metadata, tensors=tensors) as (path, uuid):
                controller.save(path)
                text = json.dumps(self._trial_record(record, steps), indent=2, sort_keys=True)
                (path / TRIAL_FILE).write_text(text + "\n", encoding="utf-8")
                config = self._context.setup.config
                copy_code(record.code_dir, record.code_files, path / "code", config=config)
        return self.directory / uuid

    def validate(self) -> dict[str, float]:
        """Evaluate the model in its current state on the validation data; return the metrics."""
        result = self._built().validate()
        return dict(result.metrics if isinstance(result, ValidationResult) else result)

    def close(self) -> None:
        """Release resources of the trial's data, such as worker processes."""
        if self._controller is not None:
            self._controller.close()
            self._controller = None

    def _built(self) -> LoopingController | SteppingController:
        if self._controller is None:
            self._controller = import_object(self._framework.controller)(self._trial, self._context)
        assert self._controller is not None
        return self._controller

    def _trial_record(self, record: InstanceRecord, steps_completed: int) -> dict[str, Any]:
        from detcore._secrets import mask_config

        setup = self._context.setup
        return {
            "version": 1,
            "framework": self._framework.name,
            "trial_class": record.entrypoint,
            "experiment_id": 0,
            "trial_id": 0,
            "trial_seed": setup.seed,
            "hparams": dict(setup.hparams),
            "config": mask_config(dict(setup.config)),
            "steps_completed": steps_completed,
        }

    def _committed(self) -> Iterator[tuple[str, Manifest]]:
        from detcore.checkpoint import MANIFEST_FILE, read_manifest

        with self._storage() as storage:
            for path in sorted(self.directory.glob(f"*/{MANIFEST_FILE}")):
                uuid = path.parent.name
                yield uuid, read_manifest(storage, uuid)

    @contextlib.contextmanager
    def _storage(self) -> Iterator[StorageBackend]:
        from detcore.storage import open_storage

        # Always a plain folder, whatever URL schemes plugins register.
        storage = open_storage(str(self.directory), home=self.directory, plugins=None)
        with contextlib.closing(storage):
            yield storage


def _steps_of(folder: Path) -> int:
    try:
        record = json.loads((folder / TRIAL_FILE).read_text(encoding="utf-8"))
        return int(record["steps_completed"])
    except (OSError, ValueError, TypeError, KeyError):
        return 0  # a checkpoint of another system, which does not record it
