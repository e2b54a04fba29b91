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
    global_step_of,
    latest_checkpoint,
    open_reader,
    require_checkpoint,
    resolve_checkpoint,
    restore,
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

    It has the methods and meanings of ``tf.estimator.Estimator`` and uses ``tf.compat.v1`` only,
    so it also runs where ``tf.estimator`` no longer exists. Each call builds a new graph; only the
    checkpoints in `model_dir` pass from one call to the next.

    Args:
        model_fn: Returns an `EstimatorSpec`. Its arguments are passed by name: ``features``, and
            any of ``labels``, ``mode``, ``params``, ``config`` and ``model_dir``. For prediction
            ``labels`` is None.
        model_dir: Folder for checkpoints and event files; None = that of `config`, or a new
            temporary one.
        config: A `RunConfig`; one of ``tf.estimator`` is accepted, too.
        params: Hyperparameters for ``params`` of `model_fn` and of input functions.
        warm_start_from: Where variables begin when `model_dir` has no checkpoint: the path of a
            checkpoint, of a folder with one or of a SavedModel, or `WarmStartSettings`.

    Raises:
        InvalidModelError: If `model_fn` takes an unknown argument or no ``features``, or no
            ``params`` although `params` is given. It is a ``ValueError``.
        ConfigError: If `config` cannot be used here, or names another folder than `model_dir`. It
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
        """Folder of the checkpoints and event files."""
        return str(self._config.model_dir)

    @property
    def config(self) -> Any:
        """A copy of the run configuration, with the folder and session settings in use."""
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
        """Train, from the latest checkpoint of `model_dir` on.

        Checkpoints are written at the start of a new model, as often as `config` says and at the
        end. Training ends at a limit, at the end of the data, or when a hook asks for it.

        Args:
            input_fn: Returns a ``tf.data.Dataset`` of ``(features, labels)`` or of features, or
                such tensors; it may take ``mode``, ``params`` and ``config``. It is called in the
                graph of the model.
            steps: How many global steps more, > 0; two calls with 10 make 20 steps.
            hooks: ``SessionRunHook`` objects.
            max_steps: Global step to stop at, > 0; nothing is done where it is reached already.
                Not together with `steps`.
            saving_listeners: ``CheckpointSaverListener`` objects, called around each save.

        Returns:
            The estimator.

        Raises:
            InvalidExperimentError: If `steps` or `max_steps` is 0 or less, or both are given. It
                is a ``ValueError``.
            InvalidModelError: If an argument has the wrong type, or the model breaks a rule.
            InvalidCheckpointError: If the latest checkpoint does not fit the model.
            NanLossDuringTrainingError: If the loss is not a number.
        """
        if steps is not None and max_steps is not None:
            raise InvalidExperimentError(
                f"steps={steps} and max_steps={max_steps} cannot both be given.\n"
                "steps counts from where training resumes, max_steps from the very beginning."
            )
        input_fn = checked_input_fn(input_fn)
        steps = checked_count("steps", steps)
        max_steps = checked_count("max_steps", max_steps)
        checked = checked_hooks(hooks)
        listeners = checked_listeners(saving_listeners)
        if max_steps is not None:
            latest = latest_checkpoint(self.model_dir)
            if latest is not None and global_step_of(latest) >= max_steps:
                _logger.info("nothing to train: %s has %d steps already", latest, max_steps)
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

        Nothing but an event file in `eval_dir` is written. A model that was never trained is
        evaluated with fresh variables.

        Args:
            input_fn: Returns the data; see `train`.
            steps: Batches at most, > 0; None = until the data end.
            hooks: ``SessionRunHook`` objects.
            checkpoint_path: The checkpoint; None = the latest of `model_dir`.
            name: Name of this evaluation, for several on different data.

        Returns:
            The metrics of ``eval_metric_ops`` by name, ``loss`` (the mean over the batches) and
            ``global_step``.

        Raises:
            InvalidExperimentError: If `steps` is 0 or less. It is a ``ValueError``.
            InvalidModelError: If an argument has the wrong type, or the model breaks a rule.
            InvalidCheckpointError: If the checkpoint does not exist or does not fit the model.
            DataError: If there is no data. It is a ``ValueError``.
        """
        input_fn = checked_input_fn(input_fn)
        checkpoint = resolve_checkpoint(self.model_dir, checkpoint_path)
        if checkpoint is None:
            _logger.warning(
                "%s has no checkpoint: the model is evaluated as it is initialized", self.model_dir
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

        The graph is built on the first request. Several generators may be open at once; one that is
        not exhausted closes its session when it is closed or collected.

        Args:
            input_fn: Returns the features; of a pair, the first part is used. See `train`.
            predict_keys: Selected predictions, if the model has a dict of them; None for all.
            hooks: ``SessionRunHook`` objects.
            checkpoint_path: The checkpoint; None = the latest of `model_dir`.
            yield_single_examples: Whether to yield records; False yields whole batches.

        Returns:
            A generator of arrays, or of dicts of them.

        Raises:
            InvalidCheckpointError: If there is no such checkpoint, or no trained model in
                `model_dir`. It is a ``ValueError``.
            InvalidModelError: While generating: if `predict_keys` does not fit the predictions, or
                they have different numbers of records. It is a ``ValueError``.
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
            export_dir_base: Folder for the exports; each gets a subfolder.
            serving_input_receiver_fn: Returns a `ServingInputReceiver`.
            assets_extra: Files to add: from a path below ``assets.extra`` to a file's path.
            as_text: Whether to write ``saved_model.pbtxt`` instead of ``saved_model.pb``.
            checkpoint_path: The checkpoint; None = the latest of `model_dir`.

        Returns:
            Path of the new folder, ``<export_dir_base>/<unix seconds>``.

        Raises:
            InvalidModelError: If there is no `serving_input_receiver_fn`, or the model has no
                ``export_outputs`` that fit it. It is a ``ValueError``.
            InvalidCheckpointError: If there is no checkpoint. It is a ``ValueError``.
            DataError: If a file of `assets_extra` does not exist. It is a ``ValueError``.
        """
        if not callable(serving_input_receiver_fn):
            raise wrong_type("serving_input_receiver_fn", serving_input_receiver_fn, "a function")
        checkpoint = require_checkpoint(self.model_dir, checkpoint_path)
        graph = ServingGraph(self.model_fn, serving_input_receiver_fn, config=self._config)
        return graph.write(
            export_dir_base,
            lambda session, saver: restore(saver, session, checkpoint),
            assets_extra=assets_extra,
            as_text=as_text,
        )

    export_savedmodel = export_saved_model

    def eval_dir(self, name: str | None = None) -> str:
        """Return the folder of the event files of an evaluation."""
        return os.path.join(self.model_dir, f"eval_{name}" if name else "eval")

    def latest_checkpoint(self) -> str | None:
        """Return the path of the latest checkpoint, without ``.index``, or None."""
        return latest_checkpoint(self.model_dir)

    def get_variable_names(self) -> list[str]:
        """Return the names of all variables in the latest checkpoint, sorted.

        Raises:
            InvalidCheckpointError: If there is no checkpoint. It is a ``ValueError``.
        """
        with open_reader(require_checkpoint(self.model_dir, None)) as reader:
            return sorted(reader.get_variable_to_shape_map())

    def get_variable_value(self, name: str) -> Any:
        """Return the value that a variable has in the latest checkpoint, as an array.

        Args:
            name: Its name, as `get_variable_names` has it; ``":0"`` may be at its end.

        Raises:
            InvalidCheckpointError: If there is no checkpoint, or no such variable. It is a
                ``ValueError``.
        """
        path = require_checkpoint(self.model_dir, None)
        with open_reader(path) as reader:
            key = name.removesuffix(":0")
            if not reader.has_tensor(key):
                known = ", ".join(sorted(reader.get_variable_to_shape_map()))
                raise InvalidCheckpointError(f"{path} has no variable {name!r}; it has {known}")
            return reader.get_tensor(key)


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
    if value is None:
        return None
    if hasattr(value, "ckpt_to_initialize_from"):
        return WarmStartSettings(*(getattr(value, field) for field in WarmStartSettings._fields))
    if not isinstance(value, (str, os.PathLike)):
        raise wrong_type("warm_start_from", value, "a path or WarmStartSettings")
    path = os.fspath(value)
    variables = os.path.join(path, "variables", "variables")
    # A SavedModel keeps its checkpoint under this name.
    return WarmStartSettings(variables if tf.io.gfile.exists(f"{variables}.index") else path)
