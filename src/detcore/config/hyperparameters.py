"""Hyperparameters: constants, groups, and ranges to draw from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from detcore.config.field_types import Section, setting, unknown_tag
from detcore.config.problems import (
    Problem,
    describe_value,
    find_closest,
    make_problem,
    prefix_error,
    raise_problems,
)
from detcore.config.source_text import Place, join_place
from detcore.contract.errors import ConfigError
from detcore.contract.values import JSONValue

if TYPE_CHECKING:
    from numpy.random import RandomState


class ConstHyperparameter(Section):
    """A constant."""

    type: Literal["const"] = setting("Type of the hyperparameter: one value.")
    val: Any = setting("Value of any type.")


class _Range(Section):
    count: int | None = setting(
        "Number of grid points; required by the searcher 'grid'.", None, ge=1
    )


class IntHyperparameter(_Range):
    """A uniformly distributed integer from minval to maxval, both inclusive."""

    type: Literal["int"] = setting("Type of the hyperparameter: uniformly distributed integer.")
    minval: int = setting("Smallest value.")
    maxval: int = setting("Largest value (inclusive).")


class DoubleHyperparameter(_Range):
    """A uniformly distributed number from minval to maxval."""

    type: Literal["double"] = setting("Type of the hyperparameter: uniformly distributed number.")
    minval: float = setting("Smallest value.")
    maxval: float = setting("Largest value.")


class LogHyperparameter(_Range):
    """``base`` to the power of a uniformly distributed exponent from minval to maxval."""

    type: Literal["log"] = setting(
        "Type of the hyperparameter: power with a uniformly distributed exponent."
    )
    minval: float = setting("Smallest exponent.")
    maxval: float = setting("Largest exponent.")
    base: float = setting("Base of the power.", 10, gt=0)


class LoguniformHyperparameter(_Range):
    """A log-uniformly distributed number from minval to maxval, stored as `LogHyperparameter`."""

    type: Literal["loguniform"] = setting(
        "Type of the hyperparameter: log-uniformly distributed number."
    )
    minval: float = setting("Smallest value.", gt=0)
    maxval: float = setting("Largest value.", gt=0)


class CategoricalHyperparameter(Section):
    """An element of a list of values."""

    type: Literal["categorical"] = setting("Type of the hyperparameter: element of a list.")
    vals: list[Any] = setting("List of values.", min_length=1)


HYPERPARAMETER_TYPES: dict[str, type[Section]] = {
    "const": ConstHyperparameter,
    "int": IntHyperparameter,
    "double": DoubleHyperparameter,
    "log": LogHyperparameter,
    "loguniform": LoguniformHyperparameter,
    "categorical": CategoricalHyperparameter,
}
_BASE = 10
_FIELDS = {name for model in HYPERPARAMETER_TYPES.values() for name in model.model_fields}


def _check_hyperparameters(value: object, _: object) -> dict[str, JSONValue]:
    if not isinstance(value, Mapping):
        raise make_problem(f"expected a mapping, got {describe_value(value)}")
    raise_problems("hyperparameters", list(_find_mistakes(value, ())))
    return cast("dict[str, JSONValue]", _normalize_group(value))


def _normalize_group(group: Mapping[str, object]) -> dict[str, Any]:
    """Return hyperparameters in which each kind of range has one representation."""
    normalized: dict[str, Any] = {}
    for name, value in group.items():
        if not isinstance(value, Mapping):
            normalized[name] = value
        elif "type" not in value:
            normalized[name] = _normalize_group(value)
        elif value["type"] == "loguniform":
            ends = {end: math.log10(value[end]) for end in ("minval", "maxval")}
            normalized[name] = {**value, "type": "log", "base": _BASE, **ends}
        else:
            normalized[name] = dict(value)
            if value["type"] == "log":
                normalized[name].setdefault("base", _BASE)
    return normalized


def _find_mistakes(group: Mapping[str, object], place: Place) -> Iterator[Problem]:
    for name, value in group.items():
        here = (*place, name)
        if not isinstance(value, Mapping):
            continue
        if "type" in value:
            yield from _find_typed_mistakes(value, here)
        elif value and set(value) <= _FIELDS:
            yield here, _make_type_error(name, value)
        elif (misspelt := _misspelt_type(value)) is not None:
            error = make_problem(f"unknown key '{misspelt}'", at="key", suggestion="type")
            yield (*here, misspelt), error
        else:
            yield from _find_mistakes(value, here)


def _find_typed_mistakes(value: Mapping[str, object], place: Place) -> Iterator[Problem]:
    name = value["type"]
    model = HYPERPARAMETER_TYPES.get(name) if isinstance(name, str) else None
    if model is None:
        yield (*place, "type"), unknown_tag("hyperparameter type", name, HYPERPARAMETER_TYPES)
        return
    try:
        model.model_validate(value)
    except ValidationError as exc:
        yield from (prefix_error(error, place) for error in exc.errors(include_url=False))


def _make_type_error(name: str, value: Mapping[str, object]) -> PydanticCustomError:
    likely = "categorical" if "vals" in value else "const" if "val" in value else None
    return make_problem(
        f"missing 'type' in hyperparameter '{name}'",
        "'type' selects the distribution",
        at="key",
        suggestion=f"type: {likely}" if likely else None,
        choices=HYPERPARAMETER_TYPES,
    )


def _misspelt_type(value: Mapping[str, object]) -> str | None:
    """Return the key that is a misspelt 'type', if the other keys look like a range."""
    for key in value:
        other_keys = set(value) - {key}
        if other_keys and other_keys <= _FIELDS and find_closest(str(key), ["type"]):
            return str(key)
    return None


Hyperparameters = Annotated[dict[str, Any], WrapValidator(_check_hyperparameters)]


def ranges(
    group: Mapping[str, object], place: Place = ()
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield every hyperparameter that has a type, with its place, sorted by name."""
    for name in sorted(group):
        value = group[name]
        if isinstance(value, Mapping) and "type" in value:
            yield (*place, name), dict(value)
        elif isinstance(value, Mapping):
            yield from ranges(value, (*place, name))


def resolve_constants(
    hyperparameters: Mapping[str, object],
    *,
    seed: int | None = None,
) -> dict[str, Any]:
    """Return plain values: constants unchanged, and one drawn value per range.

    Names are processed in sorted order within each group, so that a seed always gives the same
    values.

    Args:
        hyperparameters: As in `ExperimentConfig.hyperparameters`.
        seed: ``reproducibility.experiment_seed``; required only if there are ranges.

    Raises:
        ConfigError: If there are ranges and no seed.
    """
    hyperparameters = _normalize_group(hyperparameters)
    places = [place for place, value in ranges(hyperparameters) if value["type"] != "const"]
    if not places:
        return _resolve_group(hyperparameters, None)
    if seed is None:
        raise ConfigError(
            f"hyperparameter '{join_place(places[0])}' is a range, not a value.\n"
            "Drawing a value requires the experiment's seed.\n"
            "Pass seed=config.reproducibility.experiment_seed."
        )
    from numpy.random import RandomState

    return _resolve_group(hyperparameters, RandomState(seed))


def _resolve_group(group: Mapping[str, object], random: RandomState | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in sorted(group):
        value = group[name]
        if isinstance(value, Mapping):
            value = _draw_value(value, random) if "type" in value else _resolve_group(value, random)
        values[name] = value
    return {name: values[name] for name in group}


def _draw_value(value: Mapping[str, Any], random: Any) -> Any:
    kind = value["type"]
    if kind == "const":
        return value["val"]
    if kind == "categorical":
        return value["vals"][int(random.randint(len(value["vals"])))]
    if kind == "int":
        return int(random.randint(value["minval"], value["maxval"] + 1, dtype="int64"))
    number = float(random.uniform(value["minval"], value["maxval"]))
    return float(value["base"]) ** number if kind == "log" else number
