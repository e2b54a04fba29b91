"""Secrets of experiments: not among the records, but in a file beside them, for their owner only.

``experiments/<id>/secrets.json`` in the folder of records holds what `MASK` hides in the recorded
configuration. Resuming an experiment on this machine finds them there.
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

# Trials' hyperparameters are recorded as they are; they are no place for secrets.
_OPEN = "hyperparameters"
_STORAGE = "checkpoint_storage"


@dataclasses.dataclass(frozen=True, slots=True)
class RestoredConfig:
    """A recorded configuration with its secrets.

    Attributes:
        config: The configuration. Settings of the checkpoint storage whose secret is not known
            are left out, so that the environment's credentials are used.
        missing: Names of those settings, such as ``"secret_key"``.
        path: Where the secrets are kept.
    """

    config: dict[str, Any]
    missing: tuple[str, ...]
    path: Path


def hide_secrets(config: Mapping[str, Any], text: str | None) -> tuple[dict[str, Any], str | None]:
    """Return a configuration and its file's text with every secret starred out."""
    hidden = _masked(config)
    if text is None:
        return hidden, None
    # A secret may be where its name is not: behind an anchor, or in a list.
    shown = mask_code(text, secret_values(config, hidden))
    shown = "\n".join(hide_lines(shown.split("\n")))
    return hidden, shown


def save_secrets(home: Path, experiment_id: int, config: Mapping[str, Any]) -> None:
    """Write what `hide_secrets` hides of a new experiment to a file that its owner may read.

    Args:
        home: The folder of records.
        experiment_id: Whose they are.
        config: The configuration with its secrets.

    Raises:
        StorageError: If the file cannot be written.
    """
    path = _path(home, experiment_id)
    secrets = list(find_hidden(config, _masked(config)))
    try:
        with contextlib.suppress(FileNotFoundError):
            path.unlink()  # of an experiment of another database
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
            "They are not kept among the records, and resuming the experiment needs them.\n"
            "Make room there, or give credentials by the environment instead of the file."
        ) from error


def restore_secrets(home: Path, experiment_id: int, config: Mapping[str, Any]) -> RestoredConfig:
    """Put the secrets of an experiment back into its recorded configuration.

    Args:
        home: The folder of records.
        experiment_id: Whose it is.
        config: As recorded.
    """
    path = _path(home, experiment_id)
    full = copy.deepcopy(dict(config))
    for place, secret in _read(path):
        _put_back(full, place, secret)
    storage = full.get(_STORAGE)
    missing: tuple[str, ...] = ()
    if isinstance(storage, Mapping):
        missing = tuple(name for name, value in storage.items() if value == MASK)
        full[_STORAGE] = {name: storage[name] for name in storage if name not in missing}
    return RestoredConfig(full, missing, path)


def _path(home: Path, experiment_id: int) -> Path:
    return home / "experiments" / str(experiment_id) / "secrets.json"


def _masked(config: Mapping[str, Any]) -> dict[str, Any]:
    hidden: Any = mask_config(dict(config))
    return {**hidden, **{name: config[name] for name in (_OPEN,) if name in config}}


def _read(path: Path) -> list[tuple[list[str | int], Any]]:
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        return [(place, secret) for place, secret in content["secrets"]]
    except FileNotFoundError:
        return []
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise StorageError(
            f"the secrets in {path} cannot be read: {error}.\n"
            "They were in the experiment file, and are not kept among the records.\n"
            "Remove the file to use the environment's credentials instead."
        ) from error


def _put_back(config: Any, place: Sequence[str | int], secret: Any) -> None:
    """Put a secret where it was, if something hidden is there still."""
    holder = config
    try:
        for key in place[:-1]:
            holder = holder[key]
        if "*" in str(holder[place[-1]]):
            holder[place[-1]] = secret
    except (KeyError, IndexError, TypeError):
        return  # the record was changed since then: there is nothing to restore
