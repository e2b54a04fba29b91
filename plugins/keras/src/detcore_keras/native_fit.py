"""Provide the native API: a script builds a model, and detcore runs its ``model.fit``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from detcore.errors import ContextStateError, InvalidExperimentError, InvalidModelError
from detcore.trial import NativeStart, start_native
from detcore_keras.fit_arguments import FitArguments
from detcore_keras.keras_context import TFKerasTrialContext
from detcore_keras.keras_trial import KerasTrial
from detcore_keras.plugin import detcore_register_framework

_TAKEN_OVER = ("fit", "fit_generator")
_BATCH_SIZE = "global_batch_size"
# Arguments that detcore configures elsewhere: Keras's default, and the place to configure them.
_ELSEWHERE: Mapping[str, tuple[Any, str]] = {
    "initial_epoch": (0, "detcore run --resume continues an interrupted run"),
    "validation_batch_size": (None, "validation uses the batch size of training"),
    "validation_freq": (1, "set min_validation_period in the configuration"),
}


def init(
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    local: bool = False,
    test: bool = False,
    context_dir: str | os.PathLike[str] = "",
    command: list[str] | None = None,
    master_url: str | None = None,
) -> TFKerasNativeContext:
    """Create the context with which a script trains a Keras model.

    Call it once, at the beginning of the script. It seeds Python, NumPy and TensorFlow. Nothing is
    recorded before ``model.fit``.

    A standalone script trains in this process, or in the processes that ``detcore launch`` started.
    Under ``detcore run``, with the script as ``entrypoint``, the script trains the run's trial, and
    the run's `config` and `test` apply.

    Args:
        config: The experiment's configuration, as a dictionary or the path of an experiment file.
            A dictionary may be empty. ``searcher`` is then one trial with the metric ``val_loss``,
            and its length is ``epochs`` of ``model.fit``.
        local: Accepted for compatibility. Training always happens in this process.
        test: Whether to train one batch, validate on one batch, and save one checkpoint.
        context_dir: Directory of the code to copy into checkpoints. By default, only the script is
            copied.
        command: Rejected, because this release has no clusters.
        master_url: Rejected, because this release has no clusters.

    Returns:
        The context.

    Raises:
        InvalidExperimentError: If `command` or `master_url` requests a cluster, or the
            configuration requests a search.
        ConfigError: If the configuration is invalid, or the directory `context_dir` does not exist.
    """
    return TFKerasNativeContext(
        start_native(
            detcore_register_framework(),
            config=config,
            local=local,
            test=test,
            context_dir=context_dir,
            command=command,
            master_url=master_url,
        )
    )


class TFKerasNativeContext(TFKerasTrialContext):
    """The context of a script that trains a Keras model. `init` creates it.

    Provides the methods of a trial's context, such as ``wrap_optimizer``, ``wrap_dataset`` and
    hyperparameters.
    """

    def __init__(self, start: NativeStart) -> None:
        """Use the result of `init`.

        Args:
            start: The configuration, and the trial's identity.
        """
        super().__init__(start.setup())
        self._start = start
        self._is_used = False

    def wrap_model(self, model: Any) -> Any:
        """Register the model to train. Call it before ``model.compile``.

        Afterwards, ``model.fit`` trains as configured, with checkpoints, and with exact resume
        under ``detcore run``. It accepts the arguments of Keras, and may be called once.

        Args:
            model: A Keras model: functional, sequential or subclassed.

        Returns:
            The same model.

        Raises:
            InvalidModelError: If `model` is not a Keras model.
        """
        wrapped = super().wrap_model(model)
        self._take_over(wrapped)
        return wrapped

    def get_tensorboard_path(self) -> Path:
        """Return the directory for event files of this trial.

        Raises:
            ContextStateError: If a standalone script calls it before training began.
        """
        if self.setup.tensorboard_path is None:
            raise ContextStateError(
                "get_tensorboard_path() was called before model.fit().\n"
                "The directory belongs to the trial, which is recorded when training begins.\n"
                "Call it in a callback."
            )
        return super().get_tensorboard_path()

    def _take_over(self, model: Any) -> None:
        """Replace ``model.fit`` by instance attributes, bypassing Keras's tracking."""

        def fit(*args: Any, **kwargs: Any) -> Any:
            return self._run_fit(model, read_fit_arguments(*args, **kwargs))

        vars(model).update(dict.fromkeys(_TAKEN_OVER, fit))

    def _run_fit(self, model: Any, arguments: FitArguments) -> Any:
        """Train and return the model's history.

        Raises:
            SystemExit: With code 75, if the trial was preempted (by a signal) and has saved a
                checkpoint. Under ``detcore run`` it can be resumed.
            DetcoreError: If the script violates a rule, such as a dataset that was not wrapped.
        """
        if self._is_used:
            raise ContextStateError(
                "model.fit() was called twice on one context.\n"
                "A context trains one trial, which has ended. Start the script again, or search "
                "over hyperparameters with detcore run."
            )
        if getattr(model, "optimizer", None) is None:
            raise InvalidModelError(
                f"model.fit() was called on {model.name!r} ({type(model).__name__}), which is not "
                "compiled.\nCall model.compile(...) after context.wrap_model(model)."
            )
        self._is_used = True
        epochs, steps = arguments.epochs, arguments.steps_per_epoch
        length = {"epochs": epochs} if steps is None else {"batches": epochs * steps}
        self.configure_fit(**arguments.options)
        self._set_batch_size(arguments.batch_size)
        for name in _TAKEN_OVER:
            vars(model).pop(name, None)
        try:
            self._start.train(NativeTrial(self, model, arguments), self, length)
        finally:
            self._take_over(model)
        return model.history

    def _set_batch_size(self, batch_size: int | None) -> None:
        """Use `batch_size` of ``fit`` if the hyperparameters have no batch size.

        In a run they must have one, because the trial is recorded before the script starts.
        """
        hparams = self.setup.hparams
        if _BATCH_SIZE not in hparams:
            if not self._start.info.trial_id:
                size = 32 if batch_size is None else batch_size  # Keras's default
                size *= self.distributed.get_size()
                new_hparams = {**hparams, _BATCH_SIZE: size}
                self.setup = dataclasses.replace(self.setup, hparams=new_hparams)
            return
        allowed_sizes = {hparams[_BATCH_SIZE], self.get_per_slot_batch_size()}
        if batch_size is not None and batch_size not in allowed_sizes:
            raise InvalidExperimentError(
                f"model.fit received batch_size={batch_size}, but "
                f"hyperparameters.global_batch_size is {hparams[_BATCH_SIZE]}.\n"
                "Pass batch_size=context.get_per_slot_batch_size(), or leave it out."
            )


class NativeTrial(KerasTrial):
    """The trial of a script, which provides the arguments of ``model.fit``."""

    def __init__(self, context: TFKerasTrialContext, model: Any, arguments: FitArguments) -> None:
        self.context = context
        self._model = model
        self._arguments = arguments

    def build_model(self) -> Any:
        """Return the model."""
        return self._model

    def build_training_data_loader(self) -> Any:
        """Return the training data."""
        return self._arguments.training_data

    def build_validation_data_loader(self) -> Any:
        """Return the validation data."""
        return self._arguments.validation_data

    def keras_callbacks(self) -> list[Any]:
        """Return the callbacks."""
        return self._arguments.callbacks


def read_fit_arguments(*args: Any, **kwargs: Any) -> FitArguments:
    """Read the arguments of ``model.fit`` or ``fit_generator``.

    Raises:
        InvalidExperimentError: If an argument is unknown or missing, or detcore configures it
            elsewhere.
    """
    arguments = FitArguments.read(*args, **kwargs)
    for name, (default, instead) in _ELSEWHERE.items():
        if getattr(arguments, name) != default:
            raise InvalidExperimentError(
                f"model.fit received {name}, which has no effect in detcore: {instead}."
            )
    if arguments.validation_data is None:
        raise InvalidExperimentError(
            "model.fit received no validation_data.\n"
            "The metric that judges the trial (searcher.metric) comes from a validation.\n"
            "Pass validation_data=(x, y), or a dataset."
        )
    return arguments
