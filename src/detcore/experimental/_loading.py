"""Loading a checkpoint from its folder, by the plugin of the framework that wrote it."""

from __future__ import annotations

import inspect
import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detcore.environment import read_environment
from detcore.errors import (
    CheckpointNotFoundError,
    InvalidArgumentError,
    InvalidCheckpointError,
    PluginNotFoundError,
)
from detcore.hooks import PluginManager
from detcore.trial import check_requirements, import_object
from detcore.types import Framework

__all__ = ["load_checkpoint_folder"]

_LARGEST_BYTES = 64 << 20
_SAVED_MODEL = "saved_model"
# Formats that the earlier system wrote, and the distributions that read them here.
_LEGACY = {
    "tensorflow": "detcore-estimator",
    f"tensorflow:{_SAVED_MODEL}": "detcore-estimator",
    "tensorflow:h5": "detcore-keras",
    "tensorflow:saved_weights": "detcore-keras",
}


def load_checkpoint_folder(
    path: str | os.PathLike[str], tags: Sequence[str] | None = None, **kwargs: Any
) -> Any:
    """Load the checkpoint in a folder.

    Args:
        path: The folder.
        tags: Passed to the plugin's function if given.
        kwargs: Passed to the plugin's function.

    Returns:
        The result of the plugin's function.

    Raises:
        CheckpointNotFoundError: If there is no such folder.
        InvalidCheckpointError: If it does not say which framework wrote it, or says so in a file
            that is damaged.
        PluginNotFoundError: If no plugin loads it, or a package that the plugin needs is missing.
        InvalidArgumentError: If the plugin's function does not take these arguments.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointNotFoundError(
            f"there is no folder {folder}.\n"
            "The path is that of a checkpoint's folder, as Checkpoint.download() returns it."
        )
    written_by = _written_by(folder)
    framework = _find_framework(written_by, folder)
    check_requirements(framework)
    load = import_object(str(framework.load_checkpoint))
    given = dict(kwargs) if tags is None else {"tags": tags, **kwargs}
    _check_arguments(load, given, framework)
    return load(str(folder), **given)


def _written_by(folder: Path) -> str:
    """Return the framework of a checkpoint, with the format where the earlier system says one."""
    for name in ("trial.json", "manifest.json", "metadata.json"):
        fields = _read(folder / name)
        if name == "manifest.json":
            fields = fields.get("metadata", {})
        found = _framework_of(fields) if isinstance(fields, Mapping) else None
        if found is not None:
            return found
    raise InvalidCheckpointError(
        f"{folder} does not say which framework wrote it: none of trial.json, manifest.json and "
        "metadata.json names one.\n"
        "A trial's checkpoints do. If it was downloaded in part, download all of it; what a script "
        "saved with the Core API is loaded by the script."
    )


def _framework_of(fields: Mapping[str, Any]) -> str | None:
    framework = fields.get("framework")
    if not isinstance(framework, str) or not framework:
        olds = [name for name in ("torch", "tensorflow") if f"{name}_version" in fields]
        if not olds:
            return None
        framework = olds[0]
    name = framework.partition("-")[0] if framework.startswith(("torch-", "tensorflow-")) else (
        framework
    )  # fmt: skip
    written = fields.get("format")
    return f"{name}:{written}" if name == "tensorflow" and isinstance(written, str) else name


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        if path.stat().st_size > _LARGEST_BYTES:
            raise ValueError(f"it is larger than {_LARGEST_BYTES} bytes")
        fields = json.loads(path.read_text(encoding="utf-8"))
        if not isinstance(fields, dict):
            raise ValueError("it holds no JSON object")
    except (ValueError, RecursionError) as error:
        raise InvalidCheckpointError(
            f"{path} is damaged: {error}\nDownload the checkpoint again."
        ) from error
    return fields


def _find_framework(written_by: str, folder: Path) -> Framework:
    environment = read_environment()
    manager = PluginManager(environment)
    frameworks = manager.frameworks()
    own = frameworks.get(written_by)
    loaders = [framework for framework in frameworks.values() if framework.load_checkpoint]
    if own is not None and own.load_checkpoint:
        return own
    reading = [framework for framework in loaders if written_by in framework.reads]
    if reading:
        return reading[0]
    if own is not None:
        raise PluginNotFoundError(
            f"{folder} was written by the framework {written_by!r}, and the plugin that registers "
            "it cannot load checkpoints (it names no load_checkpoint).\n"
            "Ask the plugin's authors, or read its files yourself."
        )
    distribution = _LEGACY.get(written_by, f"detcore-{written_by.partition(':')[0]}")
    raise PluginNotFoundError(
        f"{folder} was written by the framework {written_by!r}, and no installed plugin loads its "
        f"checkpoints.\nFrameworks here: {', '.join(sorted(frameworks)) or 'none'}.\n"
        f"Install it into this environment ({sys.prefix}):\n  pip install {distribution}\n"
        "If it is installed, it may be switched off or broken: detcore plugins doctor"
    )


def _check_arguments(load: Any, given: Mapping[str, Any], framework: Framework) -> None:
    try:
        signature = inspect.signature(load)
    except (TypeError, ValueError):  # a callable that does not tell
        return
    try:
        signature.bind("path", **given)
    except TypeError as error:
        raise InvalidArgumentError(
            f"checkpoints of the framework {framework.name!r} are not loaded with "
            f"{', '.join(given) or 'these arguments'}: {error}.\n"
            f"What is passed on goes to {framework.load_checkpoint}{signature}."
        ) from error
