"""Parse amounts of training in the notation of the experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import PlainSerializer, PlainValidator, WithJsonSchema
from pydantic_core import PydanticCustomError

from detcore.config._problem import (
    describe_value,
    nearest,
    problem,
    raise_problems,
    repair_number,
)
from detcore.config._source import Place
from detcore.contract.values import Length, Unit

__all__ = ["UNITS", "Period", "TrainingLength", "UnitlessLength"]

_TOO_LONG = 1 << 63
_WAYS = "a length is one of {batches: N}, {records: N}, {epochs: N}"
UNITS = tuple(unit.value for unit in Unit)


def _validator(minimum: int, *, unitless: bool = False) -> PlainValidator:
    def validate(value: object) -> Length:
        if isinstance(value, Length):
            value = {value.unit.value: value.count}
        if unitless and isinstance(value, int) and not isinstance(value, bool):
            _check_count(value, "batches", minimum, ())
            return Length(value, Unit.BATCHES)
        if not isinstance(value, Mapping):
            text = str(value).strip()
            raise problem(
                f"expected a length with its unit, got {describe_value(value)}",
                suggestion=f"{{batches: {text}}}" if text.isdigit() else None,
                help=(_WAYS,),
            )
        unknown = [str(key) for key in value if key not in UNITS]
        raise_problems("Length", [((key,), _unknown_unit(key)) for key in unknown])
        if not value:
            raise problem("this length is empty", help=(_WAYS,))
        unit, *others = value
        if others:
            two = problem(
                f"a length has one unit, this one has {' and '.join(value)}",
                "second unit",
                at="key",
                beside=[(unit, "first unit")],
                help=("keep one of them",),
            )
            raise_problems("Length", [((others[0],), two)])
        _check_count(value[unit], unit, minimum, (unit,))
        return Length(value[unit], Unit(unit))

    return PlainValidator(validate)


def _unknown_unit(key: str) -> PydanticCustomError:
    return problem(f"unknown unit '{key}'", at="key", suggestion=nearest(key, UNITS), choices=UNITS)


def _check_count(count: object, unit: str, minimum: int, place: Place) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < minimum:
        least = "at least 1" if minimum else "0 or more"
        text = f"expected a whole number of {unit}, {least}, got {describe_value(count)}"
        label, suggestion = repair_number(count, int)
        raise_problems("Length", [(place, problem(text, label, suggestion=suggestion))])
    elif count >= _TOO_LONG:
        text = f"{count} {unit} are more than records can count (2**63 - 1)"
        raise_problems("Length", [(place, problem(text))])


def _schema(minimum: int, *, unitless: bool = False) -> WithJsonSchema:
    """Describe the notations to editors."""
    count = {"type": "integer", "minimum": minimum}
    ways: list[dict[str, Any]] = [
        {
            "type": "object",
            "title": unit,
            "description": f"A number of {unit}.",
            "properties": {unit: {**count, "description": f"How many {unit}."}},
            "required": [unit],
            "additionalProperties": False,
        }
        for unit in UNITS
    ]
    if unitless:
        ways.append({**count, "description": "A number of batches."})
    return WithJsonSchema({"oneOf": ways})


def _dump(length: Length) -> dict[str, int]:
    return {length.unit.value: length.count}


_DUMP = PlainSerializer(_dump)
Period = Annotated[Length, _validator(0), _DUMP, _schema(0)]
TrainingLength = Annotated[Length, _validator(1), _DUMP, _schema(1)]
UnitlessLength = Annotated[Length, _validator(1, unitless=True), _DUMP, _schema(1, unitless=True)]
