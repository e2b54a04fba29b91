"""Provide the native API: a script creates an estimator, and detcore trains it."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from detcore.errors import ContextStateError, InvalidExperimentError
from detcore.trial import NativeStart, start_native
from detcore_estimator.estimator_context import EstimatorContext
from detcore_estimator.estimator_trial import EstimatorTrial
from detcore_estimator.plugin import detcore_register_framework


def init(
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    local: bool = False,
    test: bool = False,
    context_dir: str | os.PathLike[str] = "",
    command: list[str] | None = None,
    master_url: str | None = None,
) -> EstimatorNativeContext:
    """Create the context with which a script trains an estimator.

    Call it once, at the beginning of the script. It seeds Python, NumPy and TensorFlow, and
    switches TensorFlow to V1 behaviour. Nothing is recorded before ``train_and_evaluate``.

    A standalone script trains in this process, or in the processes that ``detcore launch`` started.
    Under ``detcore run``, with the script as ``entrypoint``, the script trains the run's trial, and
    the run's `config` and `test` apply.

    Args:
        config: The experiment's configuration, as a dictionary or the path of an experiment file.
            A dictionary may be empty. ``searcher`` is then one trial with the metric ``loss``, and
            its length is ``max_steps`` of the ``TrainSpec``.
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
    return EstimatorNativeContext(
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


class EstimatorNativeContext(EstimatorContext):
    """The context of a script that trains an estimator. `init` creates it.

    Has the methods of a trial's context, such as ``wrap_optimizer``, ``wrap_dataset`` and
    hyperparameters.

    Attributes:
        serving_input_receiver_fns: Functions that describe the inputs of exported models, by name.
            Every checkpoint gets a SavedModel for each function. Set it before
            `train_and_evaluate`.
    """

    def __init__(self, start: NativeStart) -> None:
        """Use the result of `init`.

        Args:
            start: The configuration, and the trial's identity.
        """
        super().__init__(start.setup())
        self.serving_input_receiver_fns: Mapping[str, Callable[..., Any]] = {}
        self._start = start
        self._is_used = False

    def get_tensorboard_path(self) -> Path:
        """Return the directory for event files of this trial.

        Raises:
            ContextStateError: If a standalone script calls it before training began.
        """
        if self.setup.tensorboard_path is None:
            raise ContextStateError(
                "get_tensorboard_path() was called before train_and_evaluate().\n"
                "The directory belongs to the trial, which is recorded when training begins.\n"
                "Call it in model_fn or in an input_fn."
            )
        return super().get_tensorboard_path()

    def train_and_evaluate(self, estimator: Any, train_spec: Any, eval_spec: Any) -> None:
        """Train, validate and save checkpoints according to the configuration. Call it once.

        Estimator and specs follow the rules of `EstimatorTrial`.

        Args:
            estimator: An ``Estimator`` of ``tf.estimator`` or `detcore_estimator`.
            train_spec: A ``TrainSpec`` of ``tf.estimator`` or `detcore_estimator`.
            eval_spec: An ``EvalSpec`` of ``tf.estimator`` or `detcore_estimator`.

        Raises:
            SystemExit: With code 75, if the trial was preempted (by a signal) and has saved a
                checkpoint. Under ``detcore run`` it can be resumed.
            DetcoreError: If the script violates a rule, such as a dataset that was not wrapped.
        """
        if self._is_used:
            raise ContextStateError(
                "train_and_evaluate() was called twice on one context.\n"
                "A context trains one trial, which has ended. Start the script again, or search "
                "over hyperparameters with detcore run."
            )
        self._is_used = True
        trial = NativeTrial(self, estimator, train_spec, eval_spec)
        self._start.train(trial, self, None if self._start.has_length else _read_length(train_spec))


class NativeTrial(EstimatorTrial):
    """The trial of a script, which provides the arguments of ``train_and_evaluate``."""

    def __init__(
        self, context: EstimatorNativeContext, estimator: Any, train_spec: Any, eval_spec: Any
    ) -> None:
        self.context = context  # type: ignore[assignment]  # no EstimatorTrialContext
        self._parts = (estimator, train_spec, eval_spec)
        self._serving = context.serving_input_receiver_fns

    def build_estimator(self) -> Any:
        """Return the estimator."""
        return self._parts[0]

    def build_train_spec(self) -> Any:
        """Return the ``TrainSpec``."""
        return self._parts[1]

    def build_validation_spec(self) -> Any:
        """Return the ``EvalSpec``."""
        return self._parts[2]

    def build_serving_input_receiver_fns(self) -> Any:
        """Return the functions that the script set on its context."""
        return self._serving


def _read_length(train_spec: Any) -> Mapping[str, int]:
    max_steps = getattr(train_spec, "max_steps", None)
    if max_steps is None:
        raise InvalidExperimentError(
            "the length of training is not set: the configuration has no searcher.max_length, and "
            "the TrainSpec has no max_steps.\n"
            "Set one of them, for example:\n"
            '  init(config={"searcher": {"max_length": {"batches": 1000}}})'
        )
    return {"batches": int(max_steps)}
