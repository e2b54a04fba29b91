"""Field types that several sections of the experiment file share."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Annotated, Any, Literal

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    PlainSerializer,
    PlainValidator,
    Tag,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WithJsonSchema,
    create_model,
    model_validator,
)
from pydantic.fields import FieldInfo
from pydantic_core import PydanticCustomError

from detcore.config.problems import (
    Problem,
    describe_value,
    find_closest,
    make_problem,
    raise_problems,
    repair_number,
)
from detcore.config.source_text import Place
from detcore.contract.values import Length, Unit
from detcore.optional_distributions import describe_missing_name

# Part of the description of an accepted field without effect. A notice reports such fields.
NO_EFFECT = "accepted, no effect here"
ForClusters = Annotated[Any, Field(description=f"For a cluster: {NO_EFFECT}.")]
FromEarlier = Annotated[Any, Field(description=f"From an earlier version: {NO_EFFECT}.")]
KIND_MARK = "\0"  # first character of union tags in pydantic's locations, which are not keys


class Section(BaseModel):
    """Base of every part of the experiment file: unknown names and wrong types are mistakes."""

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, hide_input_in_errors=True, allow_inf_nan=False
    )

    @model_validator(mode="before")
    @classmethod
    def _null_is_default(cls, value: object) -> object:
        """Treat ``name: null``, or a name without a value, as missing."""
        return drop_nulls(value, cls.model_fields) if isinstance(value, Mapping) else value


def drop_nulls(
    value: Mapping[str, object], fields: Mapping[str, FieldInfo]
) -> Mapping[str, object]:
    """Return a section without the fields that are null and have a default."""
    return {
        name: item
        for name, item in value.items()
        if item is not None or name not in fields or fields[name].is_required()
    }


_make_field: Any = Field


def setting(description: str, default: object = ..., **rules: object) -> Any:
    """Return a field of a section. A field without a default is required."""
    return _make_field(default, description=description, **rules)


class Lenient(Section):
    """Base of sections that plugins extend: unknown names are kept."""

    model_config = ConfigDict(extra="allow")


Name = Annotated[str, Field(min_length=1)]


TEXT, LIST, MAPPING = (KIND_MARK + kind for kind in ("text", "list", "mapping"))
_WORDS = {TEXT: "a string", LIST: "a list", MAPPING: "a mapping"}


def accept_kinds(*kinds: str) -> BeforeValidator:
    """Return a check that a value has one of some kinds; used with `BY_KIND`."""

    def check_kind(value: object) -> object:
        if _get_kind(value) not in kinds:
            words = " or ".join(_WORDS[kind] for kind in kinds)
            raise make_problem(f"expected {words}, got {describe_value(value)}")
        return value

    return BeforeValidator(check_kind)


def _get_kind(value: object) -> str | None:
    if isinstance(value, str):
        return TEXT
    if isinstance(value, list):
        return LIST
    return MAPPING if isinstance(value, (Mapping, BaseModel)) else None


# Selects a member of a union. Without it, a wrong value is reported once per member.
BY_KIND = Discriminator(_get_kind)

Command = Annotated[
    Annotated[Name, Tag(TEXT)] | Annotated[list[Name], Field(min_length=1), Tag(LIST)],
    BY_KIND,
    accept_kinds(TEXT, LIST),
]

_TOO_LONG = 1 << 63
_WAYS = "write a length as {batches: N}, {records: N} or {epochs: N}"
UNITS = tuple(unit.value for unit in Unit)


def _make_validator(minimum: int, *, unitless: bool = False) -> PlainValidator:
    def validate(value: object) -> Length:
        if isinstance(value, Length):
            value = {value.unit.value: value.count}
        if unitless and isinstance(value, int) and not isinstance(value, bool):
            _check_count(value, "batches", minimum, ())
            return Length(value, Unit.BATCHES)
        if not isinstance(value, Mapping):
            text = str(value).strip()
            raise make_problem(
                f"expected a length with its unit, got {describe_value(value)}",
                suggestion=f"{{batches: {text}}}" if text.isdigit() else None,
                help=(_WAYS,),
            )
        unknown = [str(key) for key in value if key not in UNITS]
        raise_problems("Length", [((key,), _unknown_unit(key)) for key in unknown])
        if not value:
            raise make_problem("this length is empty", help=(_WAYS,))
        unit, *more_units = value
        if more_units:
            two = make_problem(
                f"a length has one unit, but this length has {' and '.join(value)}",
                "second unit",
                at="key",
                help=("keep one of them",),
            )
            raise_problems("Length", [((more_units[0],), two)])
        _check_count(value[unit], unit, minimum, (unit,))
        return Length(value[unit], Unit(unit))

    return PlainValidator(validate)


def _unknown_unit(key: str) -> PydanticCustomError:
    return make_problem(
        f"unknown unit '{key}'", at="key", suggestion=find_closest(key, UNITS), choices=UNITS
    )


def _check_count(count: object, unit: str, minimum: int, place: Place) -> None:
    if not isinstance(count, int) or isinstance(count, bool) or count < minimum:
        bound = "at least 1" if minimum else "0 or more"
        text = f"expected a whole number of {unit}, {bound}, got {describe_value(count)}"
        label, suggestion = repair_number(count, int)
        raise_problems("Length", [(place, make_problem(text, label, suggestion=suggestion))])
    elif count >= _TOO_LONG:
        text = f"{count} {unit} are more than the maximum (2**63 - 1)"
        raise_problems("Length", [(place, make_problem(text))])


def _make_schema(minimum: int, *, unitless: bool = False) -> WithJsonSchema:
    """Return the JSON Schema of a length."""
    count = {"type": "integer", "minimum": minimum}
    ways: list[dict[str, Any]] = [
        {
            "type": "object",
            "title": unit,
            "description": f"Length in {unit}.",
            "properties": {unit: {**count, "description": f"Number of {unit}."}},
            "required": [unit],
            "additionalProperties": False,
        }
        for unit in UNITS
    ]
    if unitless:
        ways.append({**count, "description": "Number of batches."})
    return WithJsonSchema({"oneOf": ways})


def _dump_length(length: Length) -> dict[str, int]:
    return {length.unit.value: length.count}


_DUMP = PlainSerializer(_dump_length)
Period = Annotated[Length, _make_validator(0), _DUMP, _make_schema(0)]
# Length of a trial in a search.
TrainingLength = Annotated[
    Length,
    _make_validator(1, unitless=True),
    _DUMP,
    _make_schema(1, unitless=True),
    Field(description="Maximum length of a trial. A number without a unit means batches."),
]


# Models of plugins' settings by name, or None for a plugin without a model.
Models = Mapping[str, "type[BaseModel] | None"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Tagged:
    """A section whose field `tag` names the plugin that defines its other fields.

    The key `what` of the validation context contains the names that plugins provide, with models of
    their settings, or None if a plugin has no model. Without a context, all names and fields are
    valid, so that a recorded configuration can be read without the plugin.

    Attributes:
        tag: Name of this field.
        what: Name of the section in messages.
        model: The common fields of the section. It keeps other fields as plain values.
    """

    tag: str
    what: str
    model: type[Lenient]

    def check_section(
        self, value: object, handler: ValidatorFunctionWrapHandler, info: ValidationInfo
    ) -> object:
        """Validate a section, and add the defaults of the plugin's settings."""
        plugins = self._get_models(info)
        if plugins is None or not isinstance(value, Mapping):
            return handler(value)
        if self.tag not in value:
            raise_problems(self.what, [self._make_tag_problem(value)])
        return self._from_plugin(value, plugins)

    def check_name(self, value: str, info: ValidationInfo) -> str:
        """Validate a name that replaces a section with only its tag."""
        plugins = self._get_models(info)
        if plugins is not None and value not in plugins:
            raise unknown_tag(self.what, value, plugins)
        if plugins is not None:
            self._from_plugin({self.tag: value}, plugins)
        return value

    def _get_models(self, info: ValidationInfo) -> Models | None:
        plugins: Models | None = (info.context or {}).get(self.what)
        return plugins

    def make_kind(self, name: str, settings: type[BaseModel] | None) -> type[BaseModel]:
        """Return the model of a section with a given tag: common fields and the plugin's fields.

        Args:
            name: The tag.
            settings: The model of the plugin's settings; None if all fields are valid.
        """
        bases = (self.model,) if settings is None else (settings, self.model)
        extra = ConfigDict(extra="allow" if settings is None else "forbid")
        base: Any = type("Kind", bases, {"__module__": __name__, "model_config": extra})
        tag: Any = (Literal[name], setting(f"Name of the {self.what}: {name!r}."))
        kind: type[BaseModel] = create_model(
            f"{name.title().replace('_', '')}{self.what.split()[0].title()}",
            __base__=base,
            __doc__=bases[0].__doc__,
            **{self.tag: tag},
        )
        return kind

    def _from_plugin(self, value: Mapping[str, object], plugins: Models) -> Section:
        name = value[self.tag]
        if not isinstance(name, str) or name not in plugins:
            raise_problems(self.what, [((self.tag,), unknown_tag(self.what, name, plugins))])
        kind = self.make_kind(str(name), plugins[str(name)])
        values = drop_nulls(value, kind.model_fields)
        section = kind.model_validate(values)
        # Values of the file are not dumped, because the dump would mask secrets.
        return self.model.model_validate(
            {**values, **section.model_dump(mode="json", exclude=set(values))}
        )

    def _make_tag_problem(self, value: Mapping[str, object]) -> Problem:
        for key in value:
            if find_closest(key, [self.tag]):
                text = f"unknown key '{key}' in the {self.what}"
                return (key,), make_problem(text, at="key", suggestion=self.tag)
        return (self.tag,), "missing"


def unknown_tag(what: str, name: object, choices: Iterable[str]) -> PydanticCustomError:
    """Return the error for an unknown name."""
    if not isinstance(name, str):
        text = f"expected the name of a {what}, got {describe_value(name)}"
        return make_problem(text, choices=choices)
    return make_problem(
        f"unknown {what} '{name}'",
        suggestion=find_closest(name, choices),
        choices=choices,
        help=describe_missing_name(name).splitlines(),
    )
