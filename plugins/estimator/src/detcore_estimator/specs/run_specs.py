"""Define the specs for training and validation that a trial's methods return."""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from detcore_estimator.specs.argument_checks import (
    checked_count,
    checked_exporters,
    checked_hooks,
    checked_input_fn,
    checked_listeners,
    wrong_type,
)

_TrainFields = namedtuple("_TrainFields", "input_fn max_steps hooks saving_listeners")


class TrainSpec(_TrainFields):
    """Result of ``build_train_spec``, with the fields of ``tf.estimator.TrainSpec``.

    Args:
        input_fn: Returns the training data; see `Estimator.train`.
        max_steps: Total number of steps, > 0; None for no separate limit.
        hooks: ``SessionRunHook`` objects.
        saving_listeners: ``CheckpointSaverListener`` objects, called around each save.

    Raises:
        InvalidExperimentError: If a value breaks its rule. It is a ``ValueError``.
        InvalidModelError: If a hook or listener is of the wrong type. It is a ``TypeError``, too.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        max_steps: int | None = None,
        hooks: Iterable[Any] | None = None,
        saving_listeners: Iterable[Any] | None = None,
    ) -> TrainSpec:
        """Check the parts and put them together."""
        return super().__new__(
            cls,
            input_fn=checked_input_fn(input_fn),
            max_steps=checked_count("max_steps", max_steps),
            hooks=checked_hooks(hooks),
            saving_listeners=checked_listeners(saving_listeners),
        )


_EvalFields = namedtuple(
    "_EvalFields", "input_fn steps name hooks exporters start_delay_secs throttle_secs"
)


class EvalSpec(_EvalFields):
    """Result of ``build_validation_spec``, with the fields of ``tf.estimator.EvalSpec``.

    Args:
        input_fn: Returns the validation data; see `Estimator.evaluate`.
        steps: Batches per validation, > 0; None = until the data ends.
        name: Name of this evaluation, part of the directory of its event files.
        hooks: ``SessionRunHook`` objects.
        exporters: One `Exporter`, or several exporters with different names.
        start_delay_secs: Has no effect, because the experiment file schedules validations.
        throttle_secs: Has no effect.

    Raises:
        InvalidExperimentError: If a value breaks its rule. It is a ``ValueError``.
        InvalidModelError: If a hook or exporter is of the wrong type. It is a ``TypeError``, too.
    """

    __slots__ = ()

    def __new__(
        cls,
        input_fn: Callable[..., Any],
        steps: int | None = 100,
        name: str | None = None,
        hooks: Iterable[Any] | None = None,
        exporters: Any = None,
        start_delay_secs: float = 120,
        throttle_secs: float = 600,
    ) -> EvalSpec:
        """Check the parts and put them together."""
        if name is not None and not isinstance(name, str):
            raise wrong_type("name", name, "a string or None")
        return super().__new__(
            cls,
            input_fn=checked_input_fn(input_fn),
            steps=checked_count("steps", steps),
            name=name,
            hooks=checked_hooks(hooks),
            exporters=checked_exporters(exporters),
            start_delay_secs=start_delay_secs,
            throttle_secs=throttle_secs,
        )


class WarmStartSettings(NamedTuple):
    """Selection of variables that start with the values of another model.

    Attributes:
        ckpt_to_initialize_from: A checkpoint, or a directory for its latest checkpoint.
        vars_to_warm_start: A regular expression for trainable variables, a list of regular
            expressions for all variables, a list of variables, or None for only the variables in
            `var_name_to_vocab_info`.
        var_name_to_vocab_info: Dict from a variable's name to ``tf.compat.v1.train.VocabInfo``,
            for embeddings whose vocabulary has changed.
        var_name_to_prev_var_name: Dict from a variable's name to its name in the checkpoint.
    """

    ckpt_to_initialize_from: str
    vars_to_warm_start: str | Sequence[Any] | None = ".*"
    var_name_to_vocab_info: Mapping[str, Any] | None = None
    var_name_to_prev_var_name: Mapping[str, str] | None = None
