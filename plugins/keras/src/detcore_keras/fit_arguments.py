"""Read the arguments of ``model.fit``."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from detcore.errors import InvalidExperimentError, describe

# Names by position, as in Keras.
_POSITIONS = (
    "x",
    "y",
    "batch_size",
    "epochs",
    "verbose",
    "callbacks",
    "validation_split",
    "validation_data",
    "shuffle",
    "class_weight",
    "sample_weight",
    "initial_epoch",
    "steps_per_epoch",
    "validation_steps",
    "validation_batch_size",
    "validation_freq",
    "max_queue_size",
    "workers",
    "use_multiprocessing",
)
# Passed to `TFKerasTrialContext.configure_fit`.
_OPTIONS = (
    "class_weight",
    "max_queue_size",
    "shuffle",
    "use_multiprocessing",
    "validation_steps",
    "workers",
)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class FitArguments:
    """The arguments of ``model.fit``.

    Attributes:
        training_data: As a `TFKerasTrial` returns it.
        validation_data: As a `TFKerasTrial` returns it, or None.
        batch_size: Records per step for one worker, or None.
        epochs: Number of the last epoch; >= 1.
        steps_per_epoch: Steps that count as an epoch; None for a pass over the data.
        callbacks: Keras callbacks.
        options: Arguments of `TFKerasTrialContext.configure_fit`.
        initial_epoch: Number of epochs that count as trained; >= 0.
        validation_batch_size: Records per validation step, or None for `batch_size`.
        validation_freq: Epochs between two validations; >= 1.
    """

    training_data: Any
    validation_data: Any
    batch_size: int | None
    epochs: int
    steps_per_epoch: int | None
    callbacks: list[Any]
    options: Mapping[str, Any]
    initial_epoch: int
    validation_batch_size: int | None
    validation_freq: int

    @classmethod
    def read(cls, *args: Any, **kwargs: Any) -> FitArguments:
        """Read the arguments of ``model.fit`` or ``fit_generator``.

        Raises:
            InvalidExperimentError: If an argument is unknown, missing or out of range.
        """
        arguments = _name_arguments(args, kwargs)
        x, y, weight = arguments.get("x"), arguments.get("y"), arguments.get("sample_weight")
        if x is None:
            raise InvalidExperimentError("model.fit received no data (x)")
        parts = (x, y, weight) if weight is not None else (x,) if y is None else (x, y)
        training_data = x if len(parts) == 1 else parts
        validation_data = arguments.get("validation_data")
        fraction = arguments.get("validation_split") or 0.0
        if validation_data is None and fraction:
            training_data, validation_data = _split_arrays(parts, fraction)
        callbacks = arguments.get("callbacks") or []
        options = {name: arguments[name] for name in _OPTIONS if name in arguments}
        if "verbose" in arguments:
            options["verbose"] = arguments["verbose"] not in (0, "0")
        return cls(
            training_data=training_data,
            validation_data=tuple(validation_data)
            if isinstance(validation_data, list)
            else validation_data,
            batch_size=_read_count(arguments, "batch_size"),
            epochs=_read_count(arguments, "epochs") or 1,
            steps_per_epoch=_read_count(arguments, "steps_per_epoch"),
            callbacks=list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks],
            options=options,
            initial_epoch=_read_count(arguments, "initial_epoch", least=0) or 0,
            validation_batch_size=_read_count(arguments, "validation_batch_size"),
            validation_freq=_read_count(arguments, "validation_freq") or 1,
        )


def _name_arguments(args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    if len(args) > len(_POSITIONS):
        raise InvalidExperimentError(
            f"model.fit received {len(args)} positional arguments. It accepts "
            f"{', '.join(_POSITIONS)}."
        )
    arguments = dict(zip(_POSITIONS, args, strict=False))
    repeated_names = sorted(set(arguments) & set(kwargs))
    if repeated_names:
        raise InvalidExperimentError(f"model.fit received {', '.join(repeated_names)} twice")
    arguments.update(kwargs)
    if "generator" in arguments:  # fit_generator's name for x
        arguments.setdefault("x", arguments.pop("generator"))
    unknown = sorted(set(arguments) - set(_POSITIONS))
    if unknown:
        raise InvalidExperimentError(
            f"unknown arguments of model.fit: {', '.join(unknown)}. "
            f"Accepted: {', '.join(sorted(_POSITIONS))}."
        )
    return arguments


def _read_count(arguments: Mapping[str, Any], name: str, *, least: int = 1) -> int | None:
    value = arguments.get(name)
    if value is None:
        return None
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < least:
        raise InvalidExperimentError(
            f"model.fit received {name}={describe(value)}; expected an integer >= {least}"
        )
    return int(value)


def _split_arrays(parts: tuple[Any, ...], fraction: Any) -> tuple[Any, Any]:
    """Return training and validation arrays. As in Keras, the last records validate."""
    from detcore_keras.data.batches import as_arrays, list_leaves, pack_as
    from detcore_keras.data.sequence_feed import as_sequence
    from detcore_keras.frameworks import is_tf_dataset

    if is_tf_dataset(parts[0]) or as_sequence(parts[0]) is not None:
        raise InvalidExperimentError(
            f"model.fit received validation_split={fraction!r} with a {type(parts[0]).__name__}, "
            "but only arrays can be split.\nSplit the data, and pass validation_data."
        )
    arrays = as_arrays(parts, "training")
    leaves = list_leaves(arrays)
    count = int(len(leaves[0]) * (1.0 - fraction)) if 0 < fraction < 1 else 0
    if not 0 < count < len(leaves[0]):
        raise InvalidExperimentError(
            f"model.fit received validation_split={fraction!r}, which leaves {count} of "
            f"{len(leaves[0])} records for training.\n"
            "Both parts need a record: pass a number between 0 and 1."
        )
    ranges = (slice(count), slice(count, None))
    training, validation = (pack_as(arrays, [leaf[part] for leaf in leaves]) for part in ranges)
    return training, validation
