"""Checks of the client's arguments before they are sent to the store."""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import ConfigError, InvalidArgumentError, describe
from detcore.contract.values import ExperimentState

if TYPE_CHECKING:
    from detcore.config import LoadedConfig
    from detcore.contract.values import Framework
    from detcore.plugins import PluginManager


PLAIN_HYPERPARAMETERS: Mapping[str, Any] = {"global_batch_size": 32}
_LENGTH: Mapping[str, int] = {"batches": 100}


def code_folder(context_dir: str | os.PathLike[str]) -> Path:
    """Return the absolute path of the code directory.

    Raises:
        ConfigError: If the directory does not exist.
    """
    folder = Path(context_dir).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigError(
            f"context_dir is {os.fspath(context_dir)!r}, but {folder} is not a directory"
        )
    return folder.resolve()


def check_metadata(metadata: Any) -> dict[str, Any]:
    """Return metadata as plain JSON values.

    Raises:
        InvalidArgumentError: If it is not a dictionary with string keys, or not JSON.
    """
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise InvalidArgumentError(
            f"metadata is {describe(metadata)}; expected a dictionary with string keys"
        )
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"metadata cannot be stored as JSON: {error}.\n"
            "Use strings, numbers (except NaN), booleans, None, lists and dictionaries."
        ) from error
    return plain


def check_keys(what: str, keys: Any) -> list[str]:
    """Return a list of strings.

    Raises:
        InvalidArgumentError: If it is not a list of strings. A single string is not a list.
    """
    texts = None if isinstance(keys, str) or not isinstance(keys, Iterable) else list(keys)
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(f"{what} is {describe(keys)}; expected a list of strings")
    return texts


def check_id(what: str, number: Any) -> int:
    """Return the id of a record.

    Raises:
        InvalidArgumentError: If it is not an integer.
    """
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidArgumentError(f"{what} is {describe(number)}; expected a whole number")
    return number


def check_state(state: ExperimentState | str) -> ExperimentState:
    """Return a state, which may be passed as its name.

    Raises:
        InvalidArgumentError: If the state is unknown.
    """
    names = [member.value for member in ExperimentState]
    if state not in names:
        raise InvalidArgumentError(f"unknown state {state!r}; expected one of {', '.join(names)}")
    return ExperimentState(state)


def check_count(what: str, number: Any) -> int:
    """Return a positive number.

    Raises:
        InvalidArgumentError: If it is not a positive integer.
    """
    if check_id(what, number) < 1:
        raise InvalidArgumentError(f"{what} is {number}; expected 1 or more")
    return int(number)


def check_text(what: str, text: Any) -> str:
    """Return a non-empty string.

    Raises:
        InvalidArgumentError: If it is not a string, or empty.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgumentError(f"{what} is {describe(text)}; expected a non-empty string")
    return text


def load_trial_config(
    config: Any,
    *,
    trial_class: type,
    framework: Framework,
    plugins: PluginManager,
    environment: Mapping[str, str],
    entrypoint: str | None = None,
) -> LoadedConfig:
    """Load and check the configuration of a trial class.

    All settings of a dictionary are optional. The default ``name`` is the name of the class, the
    default ``hyperparameters`` are a ``global_batch_size`` of 32, and the default ``searcher`` runs
    one trial of 100 batches with the framework's metric.

    Args:
        config: A dictionary, the path of an experiment file, or None.
        trial_class: The user's trial class.
        framework: The framework that trains it.
        plugins: Plugins that provide searchers and storages.
        environment: Environment variables that override settings.
        entrypoint: Replaces the entrypoint in `config`.

    Raises:
        ConfigError: If `config` has another type or mistakes; the message lists all of them.
    """
    from detcore.config import load_config, load_mapping

    options: dict[str, Any] = {
        "environment": environment,
        "models": plugins.settings_models(),
    }
    if isinstance(config, str | os.PathLike):
        # A JSON string is also a YAML string.
        overrides = {"entrypoint": json.dumps(entrypoint)} if entrypoint is not None else {}
        return load_config(Path(config), overrides=overrides, **options)
    filled = fill_config(
        config, trial_class=trial_class, framework=framework, entrypoint=entrypoint
    )
    return load_mapping(filled, **options)


def fill_config(
    config: Any, *, trial_class: type, framework: Framework, entrypoint: str | list[str] | None
) -> dict[str, Any]:
    """Return `config` with defaults for missing settings; see `load_trial_config`.

    Raises:
        ConfigError: If it is neither a dictionary nor None.
    """
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config is {describe(config)}; expected a dictionary, the path of an experiment file, "
            "or None"
        )
    settings = copy.deepcopy(dict(config or {}))
    settings.setdefault("name", trial_class.__name__)
    settings.setdefault("hyperparameters", dict(PLAIN_HYPERPARAMETERS))
    searcher = settings.get("searcher", {})
    if isinstance(searcher, Mapping):
        filled = {"name": "single", "metric": framework.metric, **searcher}
        if filled["name"] == "single":
            filled.setdefault("max_length", dict(_LENGTH))
        settings["searcher"] = filled
    if entrypoint is not None:
        settings["entrypoint"] = entrypoint
    return settings
