"""Secrets of experiments, stored in a private file instead of the records.

``experiments/<id>/secrets.json`` in DETCORE_HOME contains the values that `MASK` hides in the
recorded configuration. Resuming an experiment on this machine reads them from there.
"""

from __future__ import annotations

import contextlib
import copy
import dataclasses
import json
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detcore.contract.errors import StorageError
from detcore.masking import MASK, find_hidden, hide_lines, mask_code, mask_config, secret_values

# Hyperparameters are recorded unchanged. They must not contain secrets.
_OPEN = "hyperparameters"
_STORAGE = "checkpoint_storage"


@dataclasses.dataclass(frozen=True, slots=True)
class RestoredConfig:
    """A recorded configuration with its secrets.

    Attributes:
        config: The configuration. Storage settings with an unknown secret are left out, so that
            credentials from the environment are used.
        missing: Names of the settings that were left out, such as ``"secret_key"``.
        path: File that contains the secrets.
    """

    config: dict[str, Any]
    missing: tuple[str, ...]
    path: Path


def hide_secrets(config: Mapping[str, Any], text: str | None) -> tuple[dict[str, Any], str | None]:
    """Return a configuration and its file's text with all secrets masked."""
    hidden = _mask_secrets(config)
    if text is None:
        return hidden, None
    # A secret may be far from its key: behind an anchor, or in a list.
    masked = mask_code(text, secret_values(config, hidden))
    masked = "\n".join(hide_lines(masked.split("\n")))
    return hidden, masked


def save_secrets(home: Path, experiment_id: int, config: Mapping[str, Any]) -> None:
    """Write the secrets of a new experiment to a file that only its owner can read.

    Args:
        home: DETCORE_HOME.
        experiment_id: The experiment.
        config: The configuration with its secrets.

    Raises:
        StorageError: If the file cannot be written.
    """
    path = _get_path(home, experiment_id)
    secrets = list(find_hidden(config, _mask_secrets(config)))
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # left by an experiment of another database
        if not secrets:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"experiment_id": experiment_id, "secrets": secrets}, file)
            file.flush()
            os.fsync(descriptor)
    except OSError as error:
        raise StorageError(
            f"the secrets of experiment {experiment_id} cannot be written to {path}: {error}.\n"
            "They are not stored in the records, and resuming the experiment needs them.\n"
            "Free some space, or pass credentials by environment variables instead of the file."
        ) from error


def restore_secrets(home: Path, experiment_id: int, config: Mapping[str, Any]) -> RestoredConfig:
    """Put the secrets of an experiment back into its recorded configuration.

    Args:
        home: DETCORE_HOME.
        experiment_id: The experiment.
        config: The recorded configuration.
    """
    path = _get_path(home, experiment_id)
    full = copy.deepcopy(dict(config))
    for place, secret in _read_secrets(path):
        _put_back(full, place, secret)
    storage = full.get(_STORAGE)
    missing: tuple[str, ...] = ()
    if isinstance(storage, Mapping):
        missing = tuple(name for name, value in storage.items() if value == MASK)
        full[_STORAGE] = {name: storage[name] for name in storage if name not in missing}
    return RestoredConfig(full, missing, path)


def _get_path(home: Path, experiment_id: int) -> Path:
    return home / "experiments" / str(experiment_id) / "secrets.json"


def _mask_secrets(config: Mapping[str, Any]) -> dict[str, Any]:
    hidden: Any = mask_config(dict(config))
    return {**hidden, **{name: config[name] for name in (_OPEN,) if name in config}}


def _read_secrets(path: Path) -> list[tuple[list[str | int], Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [(place, secret) for place, secret in content["secrets"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"the secrets in {path} cannot be read: {error}.\n"
            "They were in the experiment file, and are not stored in the records.\n"
            f"Remove the file to use credentials from the environment instead: rm {path}"
        ) from error


def _put_back(config: Any, place: Sequence[str | int], secret: Any) -> None:
    """Put a secret back, if its place still contains a masked value."""
    holder = config
    try:
        for key in place[:-1]:
            holder = holder[key]
        if "*" in str(holder[place[-1]]):
            holder[place[-1]] = secret
    except (KeyError, IndexError, TypeError):
        return  # the record has changed since then, so its place is missing
