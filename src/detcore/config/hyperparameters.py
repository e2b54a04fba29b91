"""Define hyperparameters: constants, groups, and ranges to draw from."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

from pydantic import ValidationError, WrapValidator
from pydantic_core import PydanticCustomError

from detcore.config.field_types import Section, setting, unknown_tag
from detcore.config.problems import (
    Problem,
    again,
    describe_value,
    nearest,
    problem,
    raise_problems,
)
from detcore.config.source_text import Place, dotted
from detcore.contract.errors import ConfigError
from detcore.contract.values import JSONValue

if TYPE_CHECKING:
    from numpy.random import RandomState


class ConstHyperparameter(Section):
    """A constant."""

    type: Literal["const"] = setting("One value.")
    val: Any = setting("The value: anything.")


class _Range(Section):
    count: int | None = setting("Points of a grid; needed by the searcher 'grid'.", None, ge=1)


class IntHyperparameter(_Range):
    """A whole number from minval to maxval, both included."""

    type: Literal["int"] = setting("A whole number, uniformly.")
    minval: int = setting("Smallest value.")
    maxval: int = setting("Largest value; included.")


class DoubleHyperparameter(_Range):
    """A number from minval to maxval."""

    type: Literal["double"] = setting("A number, uniformly.")
    minval: float = setting("Smallest value.")
    maxval: float = setting("Largest value.")


class LogHyperparameter(_Range):
    """``base`` to the power of a number from minval to maxval."""

    type: Literal["log"] = setting("A power, its exponent uniformly.")
    minval: float = setting("Smallest exponent.")
    maxval: float = setting("Largest exponent.")
    base: float = setting("Base of the power.", 10, gt=0)


class LoguniformHyperparameter(_Range):
    """A number from minval to maxval, log-uniformly; stored as a `LogHyperparameter`."""

    type: Literal["loguniform"] = setting("A number, its logarithm uniformly.")
    minval: float = setting("Smallest value.", gt=0)
    maxval: float = setting("Largest value.", gt=0)


class CategoricalHyperparameter(Section):
    """One of a list of values."""

    type: Literal["categorical"] = setting("One of a list.")
    vals: list[Any] = setting("The values.", min_length=1)


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


def _check(value: object, _: object) -> dict[str, JSONValue]:
    if not isinstance(value, Mapping):
        raise problem(f"expected a mapping, got {describe_value(value)}")
    raise_problems("hyperparameters", list(_mistakes(value, ())))
    return cast("dict[str, JSONValue]", _normal(value))


def _normal(group: Mapping[str, object]) -> dict[str, Any]:
    """Return hyperparameters with one shape for each kind of range."""
    found: dict[str, Any] = {}
    for name, value in group.items():
        if not isinstance(value, Mapping):
            found[name] = value
        elif "type" not in value:
            found[name] = _normal(value)
        elif value["type"] == "loguniform":
            ends = {end: math.log10(value[end]) for end in ("minval", "maxval")}
            found[name] = {**value, "type": "log", "base": _BASE, **ends}
        else:
            found[name] = dict(value)
            if value["type"] == "log":
                found[name].setdefault("base", _BASE)
    return found


def _mistakes(group: Mapping[str, object], place: Place) -> Iterator[Problem]:
    for name, value in group.items():
        here = (*place, name)
        if not isinstance(value, Mapping):
            continue
        if "type" in value:
            yield from _typed_mistakes(value, here)
        elif value and set(value) <= _FIELDS:
            yield here, _untyped(name, value)
        elif (misspelt := _misspelt_type(value)) is not None:
            error = problem(f"unknown key '{misspelt}'", at="key", suggestion="type")
            yield (*here, misspelt), error
        else:
            yield from _mistakes(value, here)


def _typed_mistakes(value: Mapping[str, object], place: Place) -> Iterator[Problem]:
    name = value["type"]
    model = HYPERPARAMETER_TYPES.get(name) if isinstance(name, str) else None
    if model is None:
        yield (*place, "type"), unknown_tag("hyperparameter type", name, HYPERPARAMETER_TYPES)
        return
    try:
        model.model_validate(value)
    except ValidationError as exc:
        yield from (again(found, place) for found in exc.errors(include_url=False))


def _untyped(name: str, value: Mapping[str, object]) -> PydanticCustomError:
    likely = "categorical" if "vals" in value else "const" if "val" in value else None
    return problem(
        f"missing 'type' in hyperparameter '{name}'",
        "'type' says how its value is drawn",
        at="key",
        suggestion=f"type: {likely}" if likely else None,
        choices=HYPERPARAMETER_TYPES,
    )


def _misspelt_type(value: Mapping[str, object]) -> str | None:
    """Return the key that is a misspelt 'type', if the other keys look like a range."""
    for key in value:
        rest = set(value) - {key}
        if rest and rest <= _FIELDS and nearest(str(key), ["type"]):
            return str(key)
    return None


Hyperparameters = Annotated[dict[str, Any], WrapValidator(_check)]


def ranges(
    group: Mapping[str, object], place: Place = ()
) -> Iterator[tuple[Place, dict[str, Any]]]:
    """Yield every hyperparameter that has a type, with its place; names in sorted order."""
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
    """Return plain values: constants unchanged, ranges drawn once.

    Names are processed in sorted order, those of a group at the group's position, so that a seed
    always gives the same values.

    Args:
        hyperparameters: As in `ExperimentConfig.hyperparameters`.
        seed: ``reproducibility.experiment_seed``; required only if there are ranges.

    Raises:
        ConfigError: If there are ranges and no seed.
    """
    hyperparameters = _normal(hyperparameters)
    drawn = [place for place, value in ranges(hyperparameters) if value["type"] != "const"]
    if not drawn:
        return _resolve(hyperparameters, None)
    if seed is None:
        raise ConfigError(
            f"hyperparameter '{dotted(drawn[0])}' is a range, not a value.\n"
            "A value is drawn with the experiment's seed, and no seed was given.\n"
            "Pass seed=config.reproducibility.experiment_seed."
        )
    from numpy.random import RandomState

    return _resolve(hyperparameters, RandomState(seed))


def _resolve(group: Mapping[str, object], random: RandomState | None) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for name in sorted(group):
        value = group[name]
        if isinstance(value, Mapping):
            value = _draw(value, random) if "type" in value else _resolve(value, random)
        values[name] = value
    return {name: values[name] for name in group}


def _draw(value: Mapping[str, Any], random: Any) -> Any:
    kind = value["type"]
    if kind == "const":
        return value["val"]
    if kind == "categorical":
        return value["vals"][int(random.randint(len(value["vals"])))]
    if kind == "int":
        return int(random.randint(value["minval"], value["maxval"] + 1, dtype="int64"))
    number = float(random.uniform(value["minval"], value["maxval"]))
    return float(value["base"]) ** number if kind == "log" else number
