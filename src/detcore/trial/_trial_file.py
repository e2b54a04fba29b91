"""Describe a trial in its checkpoints, read the description, and make the trial again."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import CheckpointNotFoundError, InvalidCheckpointError

if TYPE_CHECKING:
    from detcore.contract.trial import TrialContext
    from detcore.contract.values import TrialInfo

__all__ = [
    "TRIAL_FILE",
    "checkpoint_folder",
    "made_from_code",
    "read_trial_file",
    "trial_record",
]

TRIAL_FILE = "trial.json"


def trial_record(info: TrialInfo, framework: str, trial_class: str) -> dict[str, Any]:
    """Return the description of a trial for its checkpoints.

    Args:
        info: The trial.
        framework: Registered name of the framework that trains it.
        trial_class: Import path of its class.
    """
    from detcore._secrets import mask_config

    return {
        "version": 1,
        "framework": framework,
        "trial_class": trial_class,
        "experiment_id": info.experiment_id,
        "trial_id": info.trial_id,
        "trial_seed": info.trial_seed,
        "hparams": dict(info.hparams),
        # A checkpoint may be passed on to users without the storage's credentials.
        "config": mask_config(dict(info.config)),
    }


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


@contextlib.contextmanager
def made_from_code(
    folder: Path,
    trial_class: str,
    context: TrialContext,
    *,
    instead: str,
    aliases: Mapping[str, ModuleType] | None = None,
) -> Iterator[Any]:
    """Make the trial of a checkpoint from the code in it, which can be imported inside the block.

    **This runs code from the checkpoint.**

    Args:
        folder: The checkpoint's folder.
        trial_class: Import path of the class.
        context: Passed to the class.
        instead: What the caller can do for a checkpoint without code, for the message.
        aliases: Modules to make available under other names inside the block.

    Raises:
        InvalidCheckpointError: If the checkpoint has no code.
        InvalidExperimentError: If the class is not in it.
    """
    from detcore.trial._code import code_imported_from
    from detcore.trial._resolve import import_trial_class

    code = folder / "code"
    if not code.is_dir():
        raise InvalidCheckpointError(
            f"{folder} has no folder 'code', from which {trial_class!r} would be imported.\n"
            f"{instead}"
        )
    with code_imported_from(code, aliases):
        yield import_trial_class(trial_class, code)(context)
