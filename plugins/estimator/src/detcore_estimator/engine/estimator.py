"""Define the stand-alone Estimator: training, evaluation, prediction and export."""

from __future__ import annotations

import copy
import logging
import os
import secrets
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from detcore.errors import ConfigError, InvalidCheckpointError, InvalidExperimentError
from detcore_estimator.engine.evaluate_loop import evaluate_model
from detcore_estimator.engine.model_dir import (
    latest_checkpoint,
    open_reader,
    read_global_step,
    require_checkpoint,
    resolve_checkpoint,
    restore_checkpoint,
)
from detcore_estimator.engine.predict_loop import predict_with_model
from detcore_estimator.engine.train_loop import train_model
from detcore_estimator.exporters.serving_graph import ServingGraph
from detcore_estimator.graph.model_fn import call_model_fn, check_model_fn
from detcore_estimator.specs.argument_checks import (
    checked_count,
    checked_hooks,
    checked_input_fn,
    checked_listeners,
    wrong_type,
)
from detcore_estimator.specs.run_config import RunConfig, default_session_config, refuse_cluster
from detcore_estimator.specs.run_specs import WarmStartSettings
from detcore_estimator.tensorflow_versions import tf

_logger = logging.getLogger("detcore.estimator")
_TEMPORARY = "detcore-estimator-"


class Estimator:
    """Trains, evaluates and exports a model that a function describes.

    It has the methods of ``tf.estimator.Estimator``, with the same meaning. It uses only
    ``tf.compat.v1``, so it also runs on versions without ``tf.estimator``. Each call builds a new
    graph. Only the checkpoints in `model_dir` connect the calls.

    Args:
        model_fn: Returns an `EstimatorSpec`. Its arguments are passed by name: ``features``, and
            any of ``labels``, ``mode``, ``params``, ``config`` and ``model_dir``. For prediction,
            ``labels`` is None.
        model_dir: Directory for checkpoints and event files; None = the directory of `config`, or a
            new temporary directory.
        config: A `RunConfig`, or a ``tf.estimator.RunConfig``.
        params: Hyperparameters for ``params`` of `model_fn` and of input functions.
        warm_start_from: Source of initial values when `model_dir` has no checkpoint: the path of a
            checkpoint, of a directory with a checkpoint or of a SavedModel, or `WarmStartSettings`.

    Raises:
        InvalidModelError: If `model_fn` has an unknown argument or no ``features``, or no
            ``params`` although `params` is passed. It is a ``ValueError``.
        ConfigError: If `config` is not supported, or names another directory than `model_dir`. It
            is a ``ValueError``.
    """

    def __init__(
        self,
        model_fn: Callable[..., Any],
        model_dir: str | os.PathLike[str] | None = None,
        config: Any = None,
        params: Mapping[str, Any] | None = None,
        warm_start_from: str | os.PathLike[str] | WarmStartSettings | None = None,
    ) -> None:
        check_model_fn(model_fn, params)
        self._user_fn = model_fn
        self._config = own_config(config, model_dir)
        self._params = copy.deepcopy({} if params is None else params)
        self._warm_start_settings = checked_warm_start(warm_start_from)

    @property
    def model_dir(self) -> str:
        """Directory of the checkpoints and event files."""
        return str(self._config.model_dir)

    @property
    def config(self) -> Any:
        """A copy of the run configuration, with the directory and session settings in use."""
        return copy.deepcopy(self._config)

    @property
    def params(self) -> Any:
        """A copy of the hyperparameters."""
        return copy.deepcopy(self._params)

    @property
    def model_fn(self) -> Callable[..., Any]:
        """The model function with the hyperparameters set: ``(features, labels, mode, config)``."""

        def model_fn(features: Any, labels: Any, mode: str, config: Any) -> Any:
            return call_model_fn(
                self._user_fn,
                features,
                labels,
                mode,
                params=self.params,
                config=config,
                model_dir=getattr(config, "model_dir", None) or self.model_dir,
            )

        return model_fn

    def train(
        self,
        input_fn: Callable[..., Any] | None = None,
        steps: int | None = None,
        hooks: Iterable[Any] | None = None,
        max_steps: int | None = None,
        saving_listeners: Iterable[Any] | None = None,
    ) -> Estimator:
        """Train, starting from the latest checkpoint of `model_dir`.

        Checkpoints are written at the start of a new model, periodically according to `config`, and
        at the end. Training ends at a limit, at the end of the data, or when a hook requests it.

        Args:
            input_fn: Returns a ``tf.data.Dataset`` of ``(features, labels)`` or of features, or
                such tensors. It may accept ``mode``, ``params`` and ``config``. It is called in the
                graph of the model.
            steps: Number of additional global steps, > 0. Two calls with 10 train 20 steps.
            hooks: ``SessionRunHook`` objects.
            max_steps: Global step to stop at, > 0. If it is already reached, nothing happens.
                Cannot be combined with `steps`.
            saving_listeners: ``CheckpointSaverListener`` objects, called around each save.

        Returns:
            The estimator.

        Raises:
            InvalidExperimentError: If `steps` or `max_steps` is 0 or less, or both are passed. It
                is a ``ValueError``.
            InvalidModelError: If an argument has the wrong type, or the model breaks a rule.
            InvalidCheckpointError: If the latest checkpoint does not fit the model.
            NanLossDuringTrainingError: If the loss is not a number.
        """
        if steps is not None and max_steps is not None:
            raise InvalidExperimentError(
                f"steps={steps} and max_steps={max_steps} cannot both be passed.\n"
                "steps counts from the step where training resumes, max_steps from step 0."
            )
        input_fn = checked_input_fn(input_fn)
        steps = checked_count("steps", steps)
        max_steps = checked_count("max_steps", max_steps)
        checked = checked_hooks(hooks)
        listeners = checked_listeners(saving_listeners)
        if max_steps is not None:
            latest = latest_checkpoint(self.model_dir)
            if latest is not None and read_global_step(latest) >= max_steps:
                _logger.info("nothing to train: %s already has %d steps", latest, max_steps)
                return self
        make_temporary_folder(self._config)
        train_model(
            self,
            input_fn,
            hooks=checked,
            listeners=listeners,
            steps=steps,
            max_steps=max_steps,
        )
        return self

    def evaluate(
        self,
        input_fn: Callable[..., Any] | None = None,
        steps: int | None = None,
        hooks: Iterable[Any] | None = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        name: str | None = None,
    ) -> dict[str, Any]:
        """Compute the metrics of the model on some data.

        Only an event file in `eval_dir` is written. An untrained model is evaluated with fresh
        variables.

        Args:
            input_fn: Returns the data; see `train`.
            steps: Maximum number of batches, > 0; None = all data.
            hooks: ``SessionRunHook`` objects.
            checkpoint_path: The checkpoint; None = the latest checkpoint of `model_dir`.
            name: Name of this evaluation, to distinguish evaluations on different data.

        Returns:
            The metrics of ``eval_metric_ops`` by name, ``loss`` (the mean over the batches) and
            ``global_step``.

        Raises:
            InvalidExperimentError: If `steps` is 0 or less. It is a ``ValueError``.
            InvalidModelError: If an argument has the wrong type, or the model breaks a rule.
            InvalidCheckpointError: If the checkpoint does not exist or does not fit the model.
            DataError: If the data is empty. It is a ``ValueError``.
        """
        input_fn = checked_input_fn(input_fn)
        checkpoint = resolve_checkpoint(self.model_dir, checkpoint_path)
        if checkpoint is None:
            _logger.warning(
                "%s has no checkpoint: the model is evaluated with its initial values",
                self.model_dir,
            )
        make_temporary_folder(self._config)
        return evaluate_model(
            self,
            input_fn,
            steps=checked_count("steps", steps),
            hooks=checked_hooks(hooks),
            checkpoint=checkpoint,
            eval_dir=self.eval_dir(name),
        )

    def predict(
        self,
        input_fn: Callable[..., Any] | None = None,
        predict_keys: Iterable[str] | None = None,
        hooks: Iterable[Any] | None = None,
        checkpoint_path: str | os.PathLike[str] | None = None,
        yield_single_examples: bool = True,
    ) -> Iterator[Any]:
        """Return a generator of predictions.

        The graph is built on the first request. Several generators may be open concurrently. A
        generator that is not exhausted closes its session when it is closed or collected.

        Args:
            input_fn: Returns the features, or a pair whose first part is used. See `train`.
            predict_keys: Names of selected predictions, if the model has a dict of predictions;
                None for all.
            hooks: ``SessionRunHook`` objects.
            checkpoint_path: The checkpoint; None = the latest checkpoint of `model_dir`.
            yield_single_examples: Whether to yield records instead of whole batches.

        Returns:
            A generator of arrays, or of dicts of arrays.

        Raises:
            InvalidCheckpointError: If the checkpoint does not exist, or `model_dir` has no trained
                model. It is a ``ValueError``.
            InvalidModelError: Raised by the generator if `predict_keys` does not fit the
                predictions, or they have different numbers of records. It is a ``ValueError``.
        """
        input_fn = checked_input_fn(input_fn)
        checked = checked_hooks(hooks)
        if self._warm_start_settings is None:
            checkpoint: str | None = require_checkpoint(self.model_dir, checkpoint_path)
        else:
            checkpoint = resolve_checkpoint(self.model_dir, checkpoint_path)
        make_temporary_folder(self._config)
        return predict_with_model(
            self,
            input_fn,
            keys=predict_keys,
            hooks=checked,
            checkpoint=checkpoint,
            is_single=yield_single_examples,
        )

    def export_saved_model(
        self,
        export_dir_base: str | os.PathLike[str],
        serving_input_receiver_fn: Callable[[], Any],
        assets_extra: Mapping[str, str] | None = None,
        as_text: bool = False,
        checkpoint_path: str | os.PathLike[str] | None = None,
    ) -> str:
        """Write the model as a SavedModel, for serving.

        Args:
            export_dir_base: Directory for the exports, each in a subdirectory.
            serving_input_receiver_fn: Returns a `ServingInputReceiver`.
            assets_extra: Files to add, as a dict from a path below ``assets.extra`` to a file path.
            as_text: Whether to write ``saved_model.pbtxt`` instead of ``saved_model.pb``.
            checkpoint_path: The checkpoint; None = the latest checkpoint of `model_dir`.

        Returns:
            Path of the new directory, ``<export_dir_base>/<unix seconds>``.

        Raises:
            InvalidModelError: If `serving_input_receiver_fn` is missing, or the model has no
                ``export_outputs`` that fit it. It is a ``ValueError``.
            InvalidCheckpointError: If the checkpoint does not exist. It is a ``ValueError``.
            DataError: If a file of `assets_extra` does not exist. It is a ``ValueError``.
        """
        if not callable(serving_input_receiver_fn):
            raise wrong_type("serving_input_receiver_fn", serving_input_receiver_fn, "a function")
        checkpoint = require_checkpoint(self.model_dir, checkpoint_path)
        graph = ServingGraph(self.model_fn, serving_input_receiver_fn, config=self._config)
        return graph.write(
            export_dir_base,
            lambda session, saver: restore_checkpoint(saver, session, checkpoint),
            assets_extra=assets_extra,
            as_text=as_text,
        )

    export_savedmodel = export_saved_model

    def eval_dir(self, name: str | None = None) -> str:
        """Return the directory of an evaluation's event files."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def latest_checkpoint(self) -> str | None:
        """Return the path of the latest checkpoint, without ``.index``, or None."""
        return latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Return the names of all variables in the latest checkpoint, sorted.

        Raises:
            InvalidCheckpointError: If `model_dir` has no checkpoint. It is a ``ValueError``.
        """
        with open_reader(require_checkpoint(self.model_dir, None)) as reader:
            return sorted(reader.get_variable_to_shape_map())

    def get_variable_value(self, name: str) -> Any:
        """Return the value of a variable in the latest checkpoint, as an array.

        Args:
            name: Name of the variable, as in `get_variable_names`, optionally with ``":0"``.

        Raises:
            InvalidCheckpointError: If `model_dir` has no checkpoint, or the checkpoint lacks the
                variable. It is a ``ValueError``.
        """
        path = require_checkpoint(self.model_dir, None)
        with open_reader(path) as reader:
            key = name.removesuffix(":0")
            if not reader.has_tensor(key):
                names = ", ".join(sorted(reader.get_variable_to_shape_map()))
                raise InvalidCheckpointError(f"{path} has no variable {name!r}; it has {names}")
            return reader.get_tensor(key)


def own_config(config: Any, model_dir: str | os.PathLike[str] | None) -> Any:
    """Return an estimator's run configuration, with a directory and session settings.

    Args:
        config: A `RunConfig` of detcore or ``tf.estimator``, or None.
        model_dir: The directory; None = the directory of `config`, or a new temporary directory.

    Raises:
        ConfigError: If the configuration needs several processes, or names another directory.
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
    if folder is not None and config.model_dir not in (None, folder):
        raise ConfigError(
            f"the Estimator has model_dir={folder!r}, but its RunConfig has {config.model_dir!r}.\n"
            "Set only one of them, or both to the same directory."
        )
    if folder is None and config.model_dir is None:
        # Created on first use. The estimator of a trial never uses it.
        folder = os.path.join(tempfile.gettempdir(), f"{_TEMPORARY}{secrets.token_hex(8)}")
    if folder is not None:
        changes["model_dir"] = folder
    return config.replace(**changes) if changes else config


def make_temporary_folder(config: Any) -> None:
    """Create the temporary directory of an estimator without a directory, and log its path once.

    Args:
        config: Result of `own_config`.
    """
    folder = str(config.model_dir)
    if not os.path.basename(folder).startswith(_TEMPORARY) or os.path.exists(folder):
        return
    os.mkdir(folder, 0o700)
    _logger.warning("no model_dir is set; the model is saved in the temporary directory %s", folder)


def checked_warm_start(value: Any) -> WarmStartSettings | None:
    """Return the source of initial values for the user's ``warm_start_from``."""
    if value is None:
        return None
    if hasattr(value, "ckpt_to_initialize_from"):
        return WarmStartSettings(*(getattr(value, field) for field in WarmStartSettings._fields))
    if not isinstance(value, (str, os.PathLike)):
        raise wrong_type("warm_start_from", value, "a path or WarmStartSettings")
    path = os.fspath(value)
    variables = os.path.join(path, "variables", "variables")
    # A SavedModel contains its checkpoint under this name.
    return WarmStartSettings(variables if tf.io.gfile.exists(f"{variables}.index") else path)
