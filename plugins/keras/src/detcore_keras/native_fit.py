"""Provide the native form: a script makes its model, and detcore runs its ``model.fit``."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from detcore.errors import ContextStateError, InvalidExperimentError, InvalidModelError, describe
from detcore.trial import NativeStart, start_native
from detcore_keras.keras_context import TFKerasTrialContext
from detcore_keras.keras_trial import TFKerasTrial
from detcore_keras.plugin import detcore_register_framework

_TAKEN_OVER = ("fit", "fit_generator")
_BATCH_SIZE = "global_batch_size"
# Names by position, as in Keras.
_POSITIONS = ("x", "y", "batch_size", "epochs", "verbose", "callbacks")
# Passed to `configure_fit`.
_OPTIONS = (
    "class_weight",
    "max_queue_size",
    "shuffle",
    "use_multiprocessing",
    "validation_steps",
    "workers",
)
_OTHERS = ("sample_weight", "steps_per_epoch", "validation_data")
# Arguments that belong elsewhere: Keras's value for "not given", and the place.
_ELSEWHERE: Mapping[str, tuple[Any, str]] = {
    "initial_epoch": (0, "detcore run --resume continues an interrupted run"),
    "validation_batch_size": (None, "validation uses the batch size of training"),
    "validation_freq": (1, "set min_validation_period in the configuration"),
    "validation_split": (0.0, "split the data, and pass validation_data"),
}


def init(
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    local: bool = False,
    test: bool = False,
    context_dir: str | os.PathLike[str] = "",
    command: list[str] | None = None,
    master_url: str | None = None,
) -> TFKerasNativeContext:
    """Make the context with which a script trains a Keras model.

    Call it once, at the beginning of the script: it seeds Python, NumPy and TensorFlow. Nothing is
    recorded before ``model.fit``.

    In a standalone script, training happens here, in this process, or in those that ``detcore
    launch`` has started. Under ``detcore run``, with the script as ``entrypoint``, the script
    trains the run's trial, and the run's `config` and `test` apply.

    Args:
        config: The experiment's configuration, as a dictionary or the path of an experiment file.
            A dictionary may leave out everything: ``searcher`` is then one trial, judged by
            ``val_loss``, with the length of ``epochs`` of ``model.fit``.
        local: Accepted for compatibility. Training happens in this process either way.
        test: Whether to train one batch, validate on one, and save one checkpoint.
        context_dir: Folder of the code to copy into checkpoints; default: only the script.
        command: For clusters, which this release does not have.
        master_url: For clusters, which this release does not have.

    Returns:
        The context.

    Raises:
        InvalidExperimentError: If `command` or `master_url` requests a cluster, or the
            configuration requests a search.
        ConfigError: If the configuration has mistakes, or the folder `context_dir` does not exist.
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
    """The context of a script that trains a Keras model; made by `init`.

    Provides the methods of a trial's context: ``wrap_optimizer``, ``wrap_dataset``,
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

        From then on ``model.fit`` trains as configured: with checkpoints, and exact resumes under
        ``detcore run``. It takes the arguments of Keras, and may be called once.

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
        """Return the folder for event files of this trial.

        Raises:
            ContextStateError: If a standalone script calls it before training began.
        """
        if self.setup.tensorboard_path is None:
            raise ContextStateError(
                "get_tensorboard_path() was called before model.fit().\n"
                "The folder is that of the trial, which is recorded when training begins.\n"
                "Call it in a callback."
            )
        return super().get_tensorboard_path()

    def _take_over(self, model: Any) -> None:
        """Replace ``model.fit`` by instance attributes, bypassing Keras's tracking."""

        def fit(*args: Any, **kwargs: Any) -> Any:
            return self._fit(model, read_fit_arguments(*args, **kwargs))

        vars(model).update(dict.fromkeys(_TAKEN_OVER, fit))

    def _fit(self, model: Any, arguments: FitArguments) -> Any:
        """Train and return the model's history.

        Raises:
            SystemExit: With code 75, if the trial was preempted (by a signal) and has saved a
                checkpoint. Under ``detcore run`` it can be resumed.
            DetcoreError: If the script violates a rule, such as a dataset that was not wrapped.
        """
        if self._is_used:
            raise ContextStateError(
                "model.fit() was called twice on one context.\n"
                "One context is one trial, and it is over. Start the script again, or search over "
                "hyperparameters with detcore run."
            )
        if getattr(model, "optimizer", None) is None:
            raise InvalidModelError(
                f"model.fit() was called on {model.name!r} ({type(model).__name__}), which is not "
                "compiled.\nCall model.compile(...) after context.wrap_model(model)."
            )
        self._is_used = True
        self.configure_fit(**arguments.options)
        self._set_batch_size(arguments.batch_size)
        for name in _TAKEN_OVER:
            vars(model).pop(name, None)
        try:
            self._start.train(NativeTrial(self, model, arguments), self, arguments.length)
        finally:
            self._take_over(model)
        return model.history

    def _set_batch_size(self, batch_size: int | None) -> None:
        """Take `batch_size` of ``fit`` if the hyperparameters give none.

        In a run they have to: the trial's records are made before the script is started.
        """
        hparams = self.setup.hparams
        if _BATCH_SIZE not in hparams:
            if not self._start.info.trial_id:
                size = 32 if batch_size is None else batch_size  # Keras's default
                size *= self.distributed.get_size()
                changed = {**hparams, _BATCH_SIZE: size}
                self.setup = dataclasses.replace(self.setup, hparams=changed)
            return
        known = {hparams[_BATCH_SIZE], self.get_per_slot_batch_size()}
        if batch_size is not None and batch_size not in known:
            raise InvalidExperimentError(
                f"model.fit was given batch_size={batch_size}, but "
                f"hyperparameters.global_batch_size is {hparams[_BATCH_SIZE]}.\n"
                "Pass batch_size=context.get_per_slot_batch_size(), or leave it out."
            )


class NativeTrial(TFKerasTrial):
    """The trial of a script: an adapter for the arguments of ``model.fit``."""

    def __init__(self, context: TFKerasNativeContext, model: Any, arguments: FitArguments) -> None:
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


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FitArguments:
    """The arguments of ``model.fit``.

    Attributes:
        training_data: As a `TFKerasTrial` returns it.
        validation_data: As a `TFKerasTrial` returns it.
        batch_size: Records per step for one worker, or None.
        length: How long to train, such as ``{"epochs": 5}``.
        callbacks: Keras callbacks.
        options: Arguments of `TFKerasTrialContext.configure_fit`.
    """

    training_data: Any
    validation_data: Any
    batch_size: int | None
    length: Mapping[str, int]
    callbacks: list[Any]
    options: Mapping[str, Any]


def read_fit_arguments(*args: Any, **kwargs: Any) -> FitArguments:
    """Read the arguments of ``model.fit`` or ``fit_generator``.

    Raises:
        InvalidExperimentError: If one is unknown, missing, or belongs elsewhere in detcore.
    """
    given = _named(args, kwargs)
    for name, (default, instead) in _ELSEWHERE.items():
        if given.pop(name, default) != default:
            raise InvalidExperimentError(
                f"model.fit was given {name}, which has no effect here: {instead}."
            )
    unknown = sorted(set(given) - {*_POSITIONS, *_OPTIONS, *_OTHERS})
    if unknown:
        raise InvalidExperimentError(
            f"model.fit was given {', '.join(unknown)}, which is not an argument of it; "
            f"it takes: {', '.join(sorted({*_POSITIONS, *_OPTIONS, *_OTHERS}))}."
        )
    x, y, weight = given.get("x"), given.get("y"), given.get("sample_weight")
    if x is None:
        raise InvalidExperimentError("model.fit was given no data (x)")
    parts = (x, y, weight) if weight is not None else (x,) if y is None else (x, y)
    validation_data = given.get("validation_data")
    if validation_data is None:
        raise InvalidExperimentError(
            "model.fit was given no validation_data.\n"
            "The metric that judges the trial (searcher.metric) comes from a validation.\n"
            "Pass validation_data=(x, y), or a dataset."
        )
    epochs, steps = _count(given, "epochs") or 1, _count(given, "steps_per_epoch")
    callbacks = given.get("callbacks") or []
    options = {name: given[name] for name in _OPTIONS if name in given}
    if "verbose" in given:
        options["verbose"] = given["verbose"] != 0
    return FitArguments(
        training_data=x if len(parts) == 1 else parts,
        validation_data=validation_data,
        batch_size=_count(given, "batch_size"),
        length={"epochs": epochs} if steps is None else {"batches": epochs * steps},
        callbacks=list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks],
        options=options,
    )


def _named(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) > len(_POSITIONS):
        raise InvalidExperimentError(
            f"model.fit was given {len(args)} arguments by position; it takes "
            f"{', '.join(_POSITIONS)}.\nName the others."
        )
    given = dict(zip(_POSITIONS, args, strict=False))
    twice = sorted(set(given) & set(kwargs))
    if twice:
        raise InvalidExperimentError(f"model.fit was given {', '.join(twice)} twice")
    given.update(kwargs)
    if "generator" in given:  # of fit_generator
        given.setdefault("x", given.pop("generator"))
    return given


def _count(given: Mapping[str, Any], name: str) -> int | None:
    value = given.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1:
        raise InvalidExperimentError(
            f"model.fit was given {name}={describe(value)}; it is an integer >= 1"
        )
    return int(value)
