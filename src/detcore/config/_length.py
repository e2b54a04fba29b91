"""Parse amounts of training in the notation of the experiment file."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import GetJsonSchemaHandler, PlainSerializer, PlainValidator
from pydantic_core import CoreSchema, PydanticCustomError

from detcore.config._problem import describe_value, nearest, problem, raise_problems
from detcore.contract.values import Length, Unit

__all__ = ["UNITS", "Period", "TrainingLength", "UnitlessLength"]

_TOO_LONG = 1 << 63
UNITS = tuple(unit.value for unit in Unit)


class _LengthRule:
    """Validates a length, and describes its notations to editors."""

    def __init__(self, minimum: int, *, unitless: bool = False) -> None:
        self.minimum = minimum
        self.unitless = unitless

    def validate(self, value: object) -> Length:
        if isinstance(value, Length):
            value = {value.unit.value: value.count}
        if self.unitless and isinstance(value, int) and not isinstance(value, bool):
            if error := self._count_error("batches", value):
                raise error
            return Length(value, Unit.BATCHES)
        if not isinstance(value, Mapping):
            raise self._not_a_length(value)
        unknown = [str(key) for key in value if key not in UNITS]
        raise_problems("Length", [((key,), _unknown_unit(key)) for key in unknown])
        if not value:
            raise problem("this length is empty", help=(_WAYS,))
        given = list(value)
        if len(given) > 1:
            raise_problems("Length", [((given[1],), _two_units(given))])
        unit = given[0]
        if error := self._count_error(unit, value[unit]):
            raise_problems("Length", [((unit,), error)])
        return Length(value[unit], Unit(unit))

    def _count_error(self, unit: str, count: object) -> PydanticCustomError | None:
        if isinstance(count, int) and not isinstance(count, bool) and count >= self.minimum:
            if count < _TOO_LONG:
                return None
            return problem(f"{count} {unit} are more than records can count (2**63 - 1)")
        least = "at least 1" if self.minimum else "0 or more"
        quoted = isinstance(count, str) and count.strip().isdigit()
        suggestion = str(count).strip() if quoted else None
        if isinstance(count, float) and count == int(count):
            suggestion = str(int(count))
        return problem(
            f"expected a whole number of {unit}, {least}, got {describe_value(count)}",
            f"remove the quotes: {suggestion}" if quoted else "",
            suggestion=suggestion,
        )

    def _not_a_length(self, value: object) -> PydanticCustomError:
        text = str(value).strip()
        return problem(
            f"expected a length with its unit, got {describe_value(value)}",
            suggestion=f"{{batches: {text}}}" if text.isdigit() else None,
            help=(_WAYS,),
        )

    def __get_pydantic_json_schema__(
        self, schema: CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        ways = [_unit_schema(unit, self.minimum) for unit in UNITS]
        if self.unitless:
            count = {"type": "integer", "minimum": self.minimum}
            ways.append({**count, "description": "A number of batches."})
        return {"oneOf": ways}


_WAYS = "a length is one of {batches: N}, {records: N}, {epochs: N}"


def _unknown_unit(key: str) -> PydanticCustomError:
    return problem(f"unknown unit '{key}'", at="key", suggestion=nearest(key, UNITS), choices=UNITS)


def _two_units(given: list[str]) -> PydanticCustomError:
    return problem(
        f"a length has one unit, this one has {' and '.join(given)}",
        "second unit",
        at="key",
        beside=[(given[0], "first unit")],
        help=("keep one of them",),
    )


def _unit_schema(unit: str, minimum: int) -> dict[str, Any]:
    count = {"type": "integer", "minimum": minimum, "description": f"How many {unit}."}
    return {
        "type": "object",
        "title": unit,
        "description": f"A number of {unit}.",
        "properties": {unit: count},
        "required": [unit],
        "additionalProperties": False,
    }


def _dump(length: Length) -> dict[str, int]:
    return {length.unit.value: length.count}


_PERIOD = _LengthRule(0)
_TRAINING = _LengthRule(1)
_UNITLESS = _LengthRule(1, unitless=True)

Period = Annotated[Length, PlainValidator(_PERIOD.validate), PlainSerializer(_dump), _PERIOD]
TrainingLength = Annotated[
    Length, PlainValidator(_TRAINING.validate), PlainSerializer(_dump), _TRAINING
]
UnitlessLength = Annotated[
    Length, PlainValidator(_UNITLESS.validate), PlainSerializer(_dump), _UNITLESS
]
