"""Train a compiled model with detcore by calling `fit` in place of ``model.fit``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from detcore.environment import read_environment
from detcore.errors import InvalidExperimentError, InvalidModelError, describe
from detcore.trial import NativeStart, start_native
from detcore_keras.data.batches import as_arrays, list_leaves
from detcore_keras.data.data_settings import FitOptions
from detcore_keras.data.sequence_feed import as_sequence
from detcore_keras.fit_arguments import FitArguments
from detcore_keras.frameworks import backend, is_tf_dataset, keras
from detcore_keras.keras_context import TFKerasTrialContext
from detcore_keras.native_fit import NativeTrial
from detcore_keras.plugin import detcore_register_framework

_BATCH_SIZE = "global_batch_size"
_DEFAULT_BATCH_SIZE = 32  # Keras's


def fit(
    model: Any,
    *args: Any,
    hparams: Mapping[str, object] | None = None,
    metric: str | None = None,
    smaller_is_better: bool = True,
    save_every: int | None = None,
    checkpoint_storage: str | None = None,
    **kwargs: Any,
) -> Any:
    """Train as ``model.fit(...)`` does, under detcore.

    Under ``detcore run``, the experiment file determines how long to train and when to report,
    validate and save. A standalone script follows its arguments, and resumes if it is started
    again after an interruption, also in the middle of an epoch. Weights that ``fit`` receives must
    then be the same until the first checkpoint: call ``keras.utils.set_random_seed`` first.

    Example::

        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.layers.Dense(10)])
        model.compile("adam", "mse")
        history = detcore_keras.fit(model, x, y, epochs=5, validation_split=0.2)

    Arrays are read in an order that depends on the seed, unlike in Keras. Callbacks with hooks for
    batches make training run batch by batch.

    Args:
        model: The compiled model.
        args: As for ``model.fit``: ``x``, ``y``, ``batch_size``, and so on. A ``Sequence``
            (``PyDataset``) or a ``tf.data.Dataset`` may replace arrays, but a generator has no
            position to resume from.
        hparams: Hyperparameters to record for a standalone script.
        metric: Validation metric that selects the best checkpoint of a standalone script; default:
            ``val_loss``, or no metric without validation data.
        smaller_is_better: Whether a smaller metric is better.
        save_every: Steps between checkpoints of a standalone script, in addition to the best and
            the last checkpoint; 0 for none; None: an epoch.
        checkpoint_storage: Path or URL for a standalone script; default: ``DETCORE_HOME``.
        kwargs: As for ``model.fit``.

    Returns:
        The ``History`` of all epochs, including those before an interruption.

    Raises:
        SystemExit: With code 75, if the trial was preempted and has saved a checkpoint.
        InvalidExperimentError: If an argument cannot be used, or several workers were started.
        InvalidDataTypeError: If the data has no position to resume from.
        InvalidModelError: If the model is not compiled, or replaces the functions of ``fit``.
        InvalidCheckpointError: If the checkpoint does not fit the model.
    """
    arguments = _prepare_data(FitArguments.read(*args, **kwargs))
    _check_start(model, arguments)
    config = _make_config(
        arguments, backend.prepare_script(model), hparams or {}, metric=metric, every=save_every
    )
    config["searcher"]["smaller_is_better"] = smaller_is_better
    if checkpoint_storage is not None:
        config["checkpoint_storage"] = checkpoint_storage
    return _train_model(model, arguments, config, has_metric=metric is not None)


def _make_config(
    arguments: FitArguments,
    seed: int,
    hparams: Mapping[str, object],
    *,
    metric: str | None,
    every: int | None,
) -> dict[str, Any]:
    """Return the configuration of a standalone script, which saves `every` number of steps."""
    has_validation = arguments.validation_data is not None
    batch_size = arguments.batch_size or _DEFAULT_BATCH_SIZE
    return {
        "searcher": {"metric": metric or ("val_loss" if has_validation else "loss")},
        "hyperparameters": {**hparams, _BATCH_SIZE: batch_size},
        "min_validation_period": {"epochs": has_validation * arguments.validation_freq},
        "min_checkpoint_period": {"epochs": 1} if every is None else {"batches": every},
        "records_per_epoch": (arguments.steps_per_epoch or 0) * batch_size,
        "reproducibility": {"experiment_seed": seed},
    }


def _train_model(
    model: Any, arguments: FitArguments, config: Mapping[str, Any], *, has_metric: bool
) -> EpochHistory:
    is_managed = read_environment().trial_info is not None
    start = start_native(
        detcore_register_framework(), config=None if is_managed else config, is_prepared=True
    )
    has_metric = has_metric or arguments.validation_data is not None
    start = dataclasses.replace(start, has_metric=has_metric)
    backend.fix_operations(start.info.settings.deterministic_ops)
    context = ScriptContext(start, arguments)
    context.wrap_model(model)
    history = EpochHistory(is_verbose=context.fit_options.verbose)
    arguments = dataclasses.replace(
        arguments,
        training_data=context.wrap_dataset(arguments.training_data),
        validation_data=context.wrap_dataset(arguments.validation_data),
        callbacks=[*arguments.callbacks, history],
    )
    start.train(
        NativeTrial(context, model, arguments),
        context,
        {"epochs": arguments.epochs - arguments.initial_epoch},
        settings=context.list_epoch_settings(),
        resume=True,
    )
    model.history = history
    return history


class ScriptContext(TFKerasTrialContext):
    """The context of a script that calls `fit`.

    Args:
        start: The configuration, and the trial's identity.
        arguments: The arguments of `fit`.
    """

    def __init__(self, start: NativeStart, arguments: FitArguments) -> None:
        setup = start.setup()
        hparams = {_BATCH_SIZE: arguments.batch_size, **setup.hparams}
        super().__init__(dataclasses.replace(setup, hparams=hparams))
        self.get_hparams()  # the script reads them elsewhere, so none is reported as unread
        self._arguments = arguments
        self.configure_fit(**arguments.options)

    @property
    def fit_options(self) -> FitOptions:
        """The settings for feeding data, and the epochs of the script."""
        return dataclasses.replace(
            super().fit_options,
            follows_keras=True,
            first_epoch=self._arguments.initial_epoch,
            validation_batch_size=self._arguments.validation_batch_size,
            validation_freq=self._arguments.validation_freq,
        )

    def list_epoch_settings(self) -> dict[str, Any]:
        """Return the field of `TrialSettings` that ``steps_per_epoch`` sets."""
        steps = self._arguments.steps_per_epoch
        return {} if steps is None else {"records_per_epoch": steps * self.get_global_batch_size()}


class EpochHistory(keras.callbacks.History):  # type: ignore[misc]  # Keras has no types
    """The history that `fit` returns. Prints a line after each epoch.

    Args:
        is_verbose: Whether to print.
    """

    def __init__(self, *, is_verbose: bool) -> None:
        super().__init__()
        self._is_verbose = is_verbose

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Record the metrics of the epoch."""
        super().on_epoch_end(epoch, logs)
        if self._is_verbose:
            numbers = [f"{n}: {v:.4f}" for n, v in (logs or {}).items() if isinstance(v, float)]
            print(f"Epoch {epoch + 1}/{self.params['epochs']} -", " - ".join(numbers), flush=True)


def _prepare_data(arguments: FitArguments) -> FitArguments:
    """Return the arguments with a batch size, and data whose length is known."""
    data, batch_size = arguments.training_data, arguments.batch_size or _DEFAULT_BATCH_SIZE
    if is_tf_dataset(data):
        from detcore_keras.data.dataset_feed import count_batches

        if arguments.steps_per_epoch is None:
            data = count_batches(data)
    elif as_sequence(data) is None:
        data = as_arrays(data, "training")
        batch_size = min(batch_size, len(list_leaves(data)[0]))
    return dataclasses.replace(arguments, training_data=data, batch_size=batch_size)


def _check_start(model: Any, arguments: FitArguments) -> None:
    """Check that the model can be trained in this process.

    Raises:
        InvalidExperimentError: If several workers were started, or no epoch is left to train.
        InvalidModelError: If the model was not compiled.
    """
    num_workers = read_environment().num_workers
    if num_workers > 1:
        raise InvalidExperimentError(
            f"{num_workers} workers were started, but detcore_keras.fit trains in one process.\n"
            "Set resources.slots_per_trial: 1, or write a KerasTrial."
        )
    if arguments.initial_epoch >= arguments.epochs:
        raise InvalidExperimentError(
            f"fit received initial_epoch={arguments.initial_epoch}, epochs={arguments.epochs}.\n"
            "epochs is the number of the last epoch, so no epoch is left to train. Raise it."
        )
    if getattr(model, "optimizer", None) is None:
        raise InvalidModelError(
            f"fit received {describe(model)}, which is not a compiled Keras model.\n"
            "Call model.compile(...) first."
        )
