"""Check and sort the arguments of ``model.fit`` in the native form."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from detcore.errors import InvalidExperimentError, describe

__all__ = ["FitArguments", "read_fit_arguments"]

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
    validation_data = given.get("validation_data")
    if validation_data is None:
        raise InvalidExperimentError(
            "model.fit was given no validation_data.\n"
            "The metric that judges the trial (searcher.metric) comes from a validation.\n"
            "Pass validation_data=(x, y), or a dataset."
        )
    options = {name: given[name] for name in _OPTIONS if name in given}
    if "verbose" in given:
        options["verbose"] = given["verbose"] != 0
    return FitArguments(
        training_data=_training_data(given),
        validation_data=validation_data,
        batch_size=_count(given, "batch_size", None),
        length=_length(given),
        callbacks=_callbacks(given.get("callbacks")),
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


def _training_data(given: Mapping[str, Any]) -> Any:
    x, y, weight = given.get("x"), given.get("y"), given.get("sample_weight")
    if x is None:
        raise InvalidExperimentError("model.fit was given no data (x)")
    if y is None and weight is None:
        return x
    return (x, y) if weight is None else (x, y, weight)


def _length(given: Mapping[str, Any]) -> dict[str, int]:
    epochs = _count(given, "epochs", 1)
    steps = _count(given, "steps_per_epoch", None)
    assert epochs is not None  # it has a default
    return {"epochs": epochs} if steps is None else {"batches": epochs * steps}


def _count(given: Mapping[str, Any], name: str, default: int | None) -> int | None:
    value = given.get(name)
    if value is None:
        return default
    if isinstance(value, bool) or not hasattr(value, "__index__") or int(value) < 1:
        raise InvalidExperimentError(
            f"model.fit was given {name}={describe(value)}; it is an integer >= 1"
        )
    return int(value)


def _callbacks(callbacks: Any) -> list[Any]:
    if callbacks is None:
        return []
    return list(callbacks) if isinstance(callbacks, list | tuple) else [callbacks]
