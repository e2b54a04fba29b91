"""Define kinds of fields that several sections share."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, get_args

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    WrapSerializer,
    model_validator,
)
from pydantic_core import PydanticCustomError

from detcore.config._problem import (
    Problem,
    again,
    describe_value,
    nearest,
    problem,
    raise_problems,
    repair_number,
)
from detcore.config._source import Place
from detcore.contract.values import Length, Unit

# The ends of descriptions of fields that are accepted and have no effect: a notice says so.
FOR_CLUSTERS = "for clusters only."
FROM_EARLIER = "From earlier versions; ignored."
KIND_MARK = "\0"  # starts those parts of pydantic's locations that are kinds, not keys of the file


class Section(BaseModel):
    """Base of every part of the experiment file: unknown names and wrong types are mistakes."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, value: object) -> object:
        """Treat ``name: null``, or a name without a value, as not given."""
        if not isinstance(value, Mapping):
            return value
        optional = {name for name, info in cls.model_fields.items() if not info.is_required()}
        return {k: v for k, v in value.items() if v is not None or k not in optional}


_make_field: Any = Field


def setting(description: str, default: object = ..., **rules: object) -> Any:
    """Return a field of a section; without a default it is required."""
    return _make_field(default, description=description, **rules)


class Lenient(Section):
    """Base of sections that others define: unknown names are kept."""

    model_config = ConfigDict(extra="allow")


Name = Annotated[str, Field(min_length=1)]


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise problem(f'expected an absolute path, got "{value}"', "begin it with '/'")
    return value


AbsolutePath = Annotated[str, Field(min_length=1), AfterValidator(_absolute)]

TEXT, LIST, INTEGER, MAPPING = (KIND_MARK + kind for kind in ("text", "list", "integer", "mapping"))
_WORDS = {TEXT: "a string", LIST: "a list", INTEGER: "an integer", MAPPING: "a mapping"}


def only(*kinds: str) -> BeforeValidator:
    """Return a check that a value is of one of some kinds; used with `BY_KIND`."""

    def check(value: object) -> object:
        if _kind(value) not in kinds:
            words = " or ".join(_WORDS[kind] for kind in kinds)
            raise problem(f"expected {words}, got {describe_value(value)}")
        return value

    return BeforeValidator(check)


def _kind(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT
    if isinstance(value, list):
        return LIST
    if isinstance(value, int) and not isinstance(value, bool):
        return INTEGER
    return MAPPING if isinstance(value, (Mapping, BaseModel)) else None


# Selects a member of a union; without it, one wrong value is reported once per member.
BY_KIND = Discriminator(_kind)

Command = Annotated[
    Annotated[Name, Tag(TEXT)] | Annotated[list[Name], Field(min_length=1), Tag(LIST)],
    BY_KIND,
    only(TEXT, LIST),
]

_SIZE = re.compile(r"\d+(\.\d+)?\s*([kmgtp]i?)?b?", re.IGNORECASE)


def _size(value: int | str) -> int | str:
    if isinstance(value, str) and not _SIZE.fullmatch(value.strip()):
        raise problem(
            f"expected a size, got {describe_value(value)}",
            help=("write a number of bytes, or a number with its unit like '1.5 gb'",),
        )
    return value


ShmSize = Annotated[
    Annotated[int, Field(ge=0), Tag(INTEGER)] | Annotated[str, Tag(TEXT)],
    BY_KIND,
    only(INTEGER, TEXT),
    AfterValidator(_size),
]

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


def by_tag(tag: str, models: Iterable[type[Section]]) -> dict[str, type[Section]]:
    """Return models by the one value that their field `tag` may have."""
    return {get_args(model.model_fields[tag].annotation)[0]: model for model in models}


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """A section whose field `tag` selects its other fields.

    The validation context contains, under `what`, the names that plugins provide, with models of
    their settings, or None if a plugin has no model. A plugin's model takes precedence over ours.
    Without a context, unknown names and fields pass, so that a recorded configuration can be read
    again without the plugin.

    Attributes:
        tag: Name of that field.
        what: Name of the section in messages.
        other: Model for sections of plugins; keeps unknown fields.
        known: Models by tag.
        retired: Tags that were valid once, and their replacements.
    """

    tag: str
    what: str
    other: type[Lenient]
    known: Mapping[str, type[Section]] = dataclasses.field(default_factory=dict)
    retired: Mapping[str, str] = dataclasses.field(default_factory=dict)

    def check_section(
        self, value: object, _: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> Section:
        """Validate a section."""
        if isinstance(value, Section):
            return value
        if not isinstance(value, Mapping):
            text = f"expected a mapping with '{self.tag}', got {describe_value(value)}"
            raise problem(text, choices=self.known)
        if self.tag not in value:
            raise_problems(self.what, [self._no_tag(value)])
        plugins, name = self._plugins(info), value[self.tag]
        model = self.known.get(name) if isinstance(name, str) else None
        if isinstance(name, str) and plugins is not None and name in plugins:
            return self._from_plugin(value, plugins[name] or model)
        if plugins is None and isinstance(name, str) and name not in self.retired:
            is_known = model is not None and set(value) <= set(model.model_fields)
            model = model if is_known else self.other
        if model is None:
            choices = list(dict.fromkeys([*self.known, *sorted(plugins or {})]))
            raise_problems(self.what, [((self.tag,), self.bad_tag(name, choices))])
        return (model or self.other).model_validate(value)

    def check_name(self, value: str, info: ValidationInfo) -> str:
        """Validate a name that stands for a section with nothing but its tag."""
        plugins = self._plugins(info)
        if plugins is not None:
            if value not in plugins:
                raise self.bad_tag(value, sorted(plugins))
            self._from_plugin({self.tag: value}, plugins[value])
        return value

    def _plugins(self, info: ValidationInfo) -> Mapping[str, type[BaseModel] | None] | None:
        plugins: Mapping[str, type[BaseModel] | None] | None = (info.context or {}).get(self.what)
        return plugins

    def _from_plugin(self, value: Mapping[str, object], model: type[BaseModel] | None) -> Section:
        """Check a section with a plugin's model, and keep it as it was written."""
        if model is not None and issubclass(model, Section):
            return model.model_validate(value)
        found: list[Problem] = []
        if model is not None:
            names, common = model.model_fields, self.other.model_fields
            unknown = [key for key in value if key not in names and key not in common]
            found += [((key,), "extra_forbidden") for key in unknown]
            try:
                model.model_validate({k: v for k, v in value.items() if k in names}, strict=True)
            except ValidationError as exc:
                found += [again(error) for error in exc.errors(include_url=False)]
        try:
            kept = self.other.model_validate(value)
        except ValidationError as exc:
            found += [again(error) for error in exc.errors(include_url=False)]
        raise_problems(self.what, found)
        return kept

    def _no_tag(self, value: Mapping[str, object]) -> Problem:
        names = {name for model in self.known.values() for name in model.model_fields}
        for key in value:
            if key not in names and nearest(key, [self.tag]):
                text = f"unknown key '{key}' in the {self.what}"
                return (key,), problem(text, at="key", suggestion=self.tag)
        return (self.tag,), "missing"

    def bad_tag(self, name: object, choices: list[str]) -> PydanticCustomError:
        """Return the error of a tag that is not valid."""
        if not isinstance(name, str):
            text = f"expected the name of a {self.what}, got {describe_value(name)}"
            return problem(text, choices=choices)
        if name in self.retired:
            text = f"the {self.what} '{name}' is no longer available"
            hint = "the earlier system removed it too"
            return problem(text, suggestion=self.retired[name], help=[hint])
        near = nearest(name, choices)
        return problem(f"unknown {self.what} '{name}'", suggestion=near, choices=choices)


def _dump_any(value: object, handler: SerializerFunctionWrapHandler) -> object:
    if not isinstance(value, BaseModel):
        return handler(value)
    dumped = value.model_dump(mode="json")
    first = [tag for tag in ("name", "type") if tag in dumped]  # before inherited fields
    return {tag: dumped[tag] for tag in first} | dumped


# Plugins provide models that the annotation does not name.
DUMP_ANY: WrapSerializer = WrapSerializer(_dump_any)
