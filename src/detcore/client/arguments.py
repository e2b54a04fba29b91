"""Arguments of the client, checked before anything is asked of the store."""

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
    """Return the folder of the code, absolute.

    Raises:
        ConfigError: If there is no such folder.
    """
    folder = Path(context_dir).expanduser().absolute()
    if not folder.is_dir():
        raise ConfigError(f"context_dir is {os.fspath(context_dir)!r}: there is no folder {folder}")
    return folder.resolve()


def check_metadata(metadata: Any) -> dict[str, Any]:
    """Return metadata as plain JSON values.

    Raises:
        InvalidArgumentError: If it is no dictionary with texts as keys, or not JSON.
    """
    if not isinstance(metadata, Mapping) or not all(isinstance(key, str) for key in metadata):
        raise InvalidArgumentError(
            f"metadata is {describe(metadata)}; expected a dictionary with texts as keys"
        )
    try:
        plain: dict[str, Any] = json.loads(json.dumps(dict(metadata), allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidArgumentError(
            f"metadata cannot be kept as JSON: {error}.\n"
            "It holds texts, numbers (no NaN), booleans, None, lists and dictionaries of these."
        ) from error
    return plain


def check_keys(what: str, keys: Any) -> list[str]:
    """Return a list of texts.

    Raises:
        InvalidArgumentError: If it is something else; a single text is a mistake, too.
    """
    texts = None if isinstance(keys, str) or not isinstance(keys, Iterable) else list(keys)
    if texts is None or not all(isinstance(text, str) for text in texts):
        raise InvalidArgumentError(f"{what} is {describe(keys)}; expected a list of texts")
    return texts


def check_id(what: str, number: Any) -> int:
    """Return the id of a record.

    Raises:
        InvalidArgumentError: If it is no whole number.
    """
    if isinstance(number, bool) or not isinstance(number, int):
        raise InvalidArgumentError(f"{what} is {describe(number)}; expected a whole number")
    return number


def check_state(state: ExperimentState | str) -> ExperimentState:
    """Return a state that may be given by its name.

    Raises:
        InvalidArgumentError: If there is no such state.
    """
    names = [each.value for each in ExperimentState]
    if state not in names:
        raise InvalidArgumentError(f"{state!r} is no state; expected one of {', '.join(names)}")
    return ExperimentState(state)


def check_count(what: str, number: Any) -> int:
    """Return how many are wanted.

    Raises:
        InvalidArgumentError: If it is no whole number from 1.
    """
    if check_id(what, number) < 1:
        raise InvalidArgumentError(f"{what} is {number}; expected 1 or more")
    return int(number)


def check_text(what: str, text: Any) -> str:
    """Return a text that says something.

    Raises:
        InvalidArgumentError: If it is something else, or empty.
    """
    if not isinstance(text, str) or not text.strip():
        raise InvalidArgumentError(f"{what} is {describe(text)}; expected a text")
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
    """Check the given `config`, as an experiment file is checked.

    A dictionary may leave out everything: its ``name`` is then the class's, its
    ``hyperparameters`` a ``global_batch_size`` of 32, and its ``searcher`` one trial of 100 batches
    that is judged by the framework's metric.

    Args:
        config: A dictionary, the path of an experiment file, or None.
        trial_class: The user's class.
        framework: The framework that trains it.
        plugins: Know further searchers and storages.
        environment: Variables that override settings.
        entrypoint: Taken in place of the one in `config`.

    Raises:
        ConfigError: If it is something else, or has mistakes; the message lists all of them.
    """
    from detcore.config import load_config, load_mapping

    known: dict[str, Any] = {
        "environment": environment,
        "models": plugins.settings_models(),
    }
    if isinstance(config, str | os.PathLike):
        # A value in quotes is the same text in YAML.
        overrides = {"entrypoint": json.dumps(entrypoint)} if entrypoint is not None else {}
        return load_config(Path(config), overrides=overrides, **known)
    filled = fill_config(
        config, trial_class=trial_class, framework=framework, entrypoint=entrypoint
    )
    return load_mapping(filled, **known)


def fill_config(
    config: Any, *, trial_class: type, framework: Framework, entrypoint: str | list[str] | None
) -> dict[str, Any]:
    """Return the given `config` with defaults for missing settings; see `load_trial_config`.

    Raises:
        ConfigError: If it is no dictionary, nor None.
    """
    if config is not None and not isinstance(config, Mapping):
        raise ConfigError(
            f"config is {describe(config)}; it is a dictionary, the path of an experiment file, or "
            "None"
        )
    given = copy.deepcopy(dict(config or {}))
    given.setdefault("name", trial_class.__name__)
    given.setdefault("hyperparameters", dict(PLAIN_HYPERPARAMETERS))
    searcher = given.get("searcher", {})
    if isinstance(searcher, Mapping):
        filled = {"name": "single", "metric": framework.metric, **searcher}
        if filled["name"] == "single":
            filled.setdefault("max_length", dict(_LENGTH))
        given["searcher"] = filled
    if entrypoint is not None:
        given["entrypoint"] = entrypoint
    return given
