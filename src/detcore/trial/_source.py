"""Start a fresh trial from another trial's checkpoint."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from detcore.contract.controllers import SupportsStartFrom
from detcore.contract.errors import (
    CheckpointNotFoundError,
    InvalidCheckpointError,
    InvalidExperimentError,
)
from detcore.contract.trial import TRIAL_FILE

if TYPE_CHECKING:
    from detcore.contract.values import Framework, TrialInfo
    from detcore.core import Context

__all__ = ["start_from_source"]


def start_from_source(core: Context, controller: object, framework: Framework) -> None:
    """Pass the controller the checkpoint that the trial starts from, if there is one.

    Args:
        core: The trial's context.
        controller: The trial's controller.
        framework: The controller's framework.

    Raises:
        InvalidExperimentError: If the controller has no `start_from`.
        CheckpointNotFoundError: If the checkpoint is gone.
        InvalidCheckpointError: If it belongs to another framework, or does not fit.
    """
    info = core.info
    if info is None or info.source_checkpoint is None:
        return
    if not isinstance(controller, SupportsStartFrom):
        raise InvalidExperimentError(
            f"the trial is to start from checkpoint {info.source_checkpoint} "
            "(searcher.source_checkpoint_uuid or source_trial_id), but trials of the framework "
            f"{framework.name!r} cannot start from another trial's checkpoint.\n"
            f"The controller of {framework.name!r} has no method start_from.\n"
            "Take the setting out of the experiment file."
        )
    with _source_folder(core, info, info.source_checkpoint) as folder:
        _check_framework(folder, framework)
        controller.start_from(folder)
    logging.getLogger("detcore.trial").info(
        "training starts from checkpoint %s: its variables, at batch 0", info.source_checkpoint
    )


@contextlib.contextmanager
def _source_folder(core: Context, info: TrialInfo, source: str) -> Iterator[Path]:
    if Path(source).is_absolute():
        if not Path(source).is_dir():
            raise CheckpointNotFoundError(
                f"the trial starts from the folder {source}, which does not exist.\n"
                "Put it back; the trial needs it until its first checkpoint."
            )
        yield Path(source)
        return
    if info.source_storage is None:
        with core.checkpoint.restore_path(source) as folder:
            yield folder
        return
    from detcore.checkpoint import CheckpointContext
    from detcore.storage import open_storage

    home = core.environment.home
    with contextlib.closing(
        open_storage(info.source_storage, home=home, plugins=core.plugins)
    ) as storage:
        context = CheckpointContext(storage=storage, distributed=core.distributed)
        with context.restore_path(source) as folder:
            yield folder


def _check_framework(folder: Path, framework: Framework) -> None:
    """Refuse a checkpoint of another framework; one that names no framework is accepted."""
    path = folder / TRIAL_FILE
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return
    except ValueError as error:
        raise InvalidCheckpointError(f"{path} is damaged: {error}") from error
    written_by = record.get("framework") if isinstance(record, dict) else None
    if written_by != framework.name:
        raise InvalidCheckpointError(
            f"the trial is to start from {folder}, which is a checkpoint of the framework "
            f"{written_by!r}; the trial is one of {framework.name!r}.\n"
            "The variables of one framework mean nothing to another.\n"
            "Name a checkpoint of a trial of the same framework."
        )
