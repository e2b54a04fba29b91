"""Prepare the arguments of an Estimator."""

from __future__ import annotations

import logging
import os
import secrets
import tempfile
from typing import Any

from detcore.errors import ConfigError
from detcore_estimator._arguments import wrong_type
from detcore_estimator._run_config import RunConfig, default_session_config, refuse_cluster
from detcore_estimator._run_specs import WarmStartSettings
from detcore_estimator._tf import tf

__all__ = ["checked_warm_start", "make_temporary_folder", "own_config"]

_logger = logging.getLogger("detcore.estimator")

_TEMPORARY = "detcore-estimator-"


def own_config(config: Any, model_dir: str | os.PathLike[str] | None) -> Any:
    """Return an estimator's run configuration, with a folder and session settings.

    Args:
        config: A `RunConfig`, ours or ``tf.estimator``'s, or None.
        model_dir: The folder; None = that of `config`, or a new temporary one.

    Raises:
        ConfigError: If it needs several processes, or names another folder.
    """
    if config is None:
        config = RunConfig()
    if not all(hasattr(config, name) for name in ("replace", "model_dir", "session_config")):
        raise wrong_type("config", config, "a RunConfig")
    refuse_cluster(config)
    changes: dict[str, Any] = {}
    if config.session_config is None:
        changes["session_config"] = default_session_config()
    folder = None if model_dir is None else os.fspath(model_dir)
    if folder == "":
        raise ConfigError("model_dir is an empty string; leave it out for a temporary folder")
    if folder is not None and config.model_dir not in (None, folder):
        raise ConfigError(
            f"the Estimator has model_dir={folder!r} and its RunConfig {config.model_dir!r}.\n"
            "Set one of them, or both to the same folder."
        )
    if folder is None and config.model_dir is None:
        # Made when it is used: the estimator of a trial never does.
        folder = os.path.join(tempfile.gettempdir(), f"{_TEMPORARY}{secrets.token_hex(8)}")
    if folder is not None:
        changes["model_dir"] = folder
    return config.replace(**changes) if changes else config


def make_temporary_folder(config: Any) -> None:
    """Make the folder of an estimator that was given none, and say where it is; once.

    Args:
        config: Result of `own_config`.
    """
    folder = str(config.model_dir)
    if not os.path.basename(folder).startswith(_TEMPORARY) or os.path.exists(folder):
        return
    os.mkdir(folder, 0o700)
    _logger.warning("no model_dir is set; the model is kept in the temporary folder %s", folder)


def checked_warm_start(value: Any) -> WarmStartSettings | None:
    """Return the source of initial values for the user's ``warm_start_from``."""
    if value is None or isinstance(value, WarmStartSettings):
        return value
    if hasattr(value, "ckpt_to_initialize_from"):
        return WarmStartSettings(*(getattr(value, field) for field in WarmStartSettings._fields))
    if not isinstance(value, (str, os.PathLike)):
        raise wrong_type("warm_start_from", value, "a path or WarmStartSettings")
    path = os.fspath(value)
    variables = os.path.join(path, "variables", "variables")
    # A SavedModel keeps its checkpoint under this name.
    return WarmStartSettings(variables if tf.io.gfile.exists(f"{variables}.index") else path)
