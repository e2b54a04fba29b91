"""Define kinds of fields that several sections share."""

from __future__ import annotations

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
    SerializerFunctionWrapHandler,
    Tag,
    ValidationError,
    ValidationInfo,
    ValidatorFunctionWrapHandler,
    WrapSerializer,
    WrapValidator,
    model_validator,
)
from pydantic_core import PydanticCustomError

from detcore.config._problem import Problem, again, describe_value, nearest, problem, raise_problems

__all__ = [
    "BY_KIND",
    "DUMP_ANY",
    "FOR_CLUSTERS",
    "FROM_EARLIER",
    "INTEGER",
    "KIND_MARK",
    "LIST",
    "MAPPING",
    "TEXT",
    "AbsolutePath",
    "Command",
    "Lenient",
    "Name",
    "Section",
    "ShmSize",
    "by_tag",
    "named",
    "only",
    "setting",
    "tagged",
]

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


def setting(description: str, default: Any = ..., **rules: Any) -> Any:
    """Return a field of a section; without a default it is required."""
    return Field(default, description=description, **rules)


class Lenient(Section):
    """Base of sections that others define: unknown names are kept."""

    model_config = ConfigDict(extra="allow")


Name = Annotated[str, Field(min_length=1)]


def _absolute(value: str) -> str:
    if not value.startswith("/"):
        raise problem(f'expected an absolute path, got "{value}"', "begin it with '/'")
    return value


AbsolutePath = Annotated[str, Field(min_length=1), AfterValidator(_absolute)]

# -- one of several kinds of value ------------------------------------------------------------

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

# -- sections whose fields depend on one of them ------------------------------------------------


def by_tag(tag: str, models: Iterable[type[Section]]) -> dict[str, type[Section]]:
    """Return models by the one value that their field `tag` may have."""
    return {get_args(model.model_fields[tag].annotation)[0]: model for model in models}


def tagged(
    tag: str,
    what: str,
    known: Mapping[str, type[Section]],
    *,
    other: type[Lenient],
    retired: Mapping[str, str],
) -> WrapValidator:
    """Return the validator of a section whose field `tag` selects its other fields.

    The validation context contains, under `what`, the names that plugins provide, with models of
    their settings, or None if a plugin has no model. A plugin's model takes precedence over ours.
    Without a context, unknown names and fields pass, so that a recorded configuration can be read
    again without the plugin.

    Args:
        tag: Name of that field.
        what: Name of the section in messages.
        known: Models by tag.
        other: Model for sections of plugins; keeps unknown fields.
        retired: Tags that were valid once, and their replacements.
    """

    def choose(value: object, _: ValidatorFunctionWrapHandler, info: ValidationInfo) -> Section:
        if isinstance(value, Section):
            return value
        if not isinstance(value, Mapping):
            raise problem(
                f"expected a mapping with '{tag}', got {describe_value(value)}", choices=known
            )
        if tag not in value:
            raise_problems(what, [_no_tag(tag, what, value, known)])
        plugins, name = _plugins(info, what), value[tag]
        model = known.get(name) if isinstance(name, str) else None
        if isinstance(name, str) and plugins is not None and name in plugins:
            return _from_plugin(value, plugins[name] or model, other)
        if plugins is None and isinstance(name, str) and name not in retired:
            is_known = model is not None and set(value) <= set(model.model_fields)
            model = model if is_known else other
        if model is None:
            choices = list(dict.fromkeys([*known, *sorted(plugins or {})]))
            raise_problems(what, [((tag,), _bad_tag(name, what, choices, retired))])
        return (model or other).model_validate(value)

    return WrapValidator(choose)


def named(tag: str, what: str, *, other: type[Lenient]) -> AfterValidator:
    """Return the check of a name that stands for a section with nothing but its tag.

    The arguments are those of `tagged`.
    """

    def check(value: str, info: ValidationInfo) -> str:
        plugins = _plugins(info, what)
        if plugins is not None:
            if value not in plugins:
                raise _bad_tag(value, what, sorted(plugins), {})
            _from_plugin({tag: value}, plugins[value], other)
        return value

    return AfterValidator(check)


def _plugins(info: ValidationInfo, what: str) -> Mapping[str, type[BaseModel] | None] | None:
    plugins: Mapping[str, type[BaseModel] | None] | None = (info.context or {}).get(what)
    return plugins


def _from_plugin(
    value: Mapping[str, object], model: type[BaseModel] | None, other: type[Lenient]
) -> Section:
    """Check a section with a plugin's model, and keep it as it was written."""
    if model is not None and issubclass(model, Section):
        return model.model_validate(value)
    found: list[Problem] = []
    if model is not None:
        names, common = model.model_fields, other.model_fields
        found += [((k,), "extra_forbidden") for k in value if k not in names and k not in common]
        try:
            model.model_validate({k: v for k, v in value.items() if k in names}, strict=True)
        except ValidationError as exc:
            found += [again(error) for error in exc.errors(include_url=False)]
    try:
        kept = other.model_validate(value)
    except ValidationError as exc:
        found += [again(error) for error in exc.errors(include_url=False)]
    raise_problems(other.__name__, found)
    return kept


def _no_tag(
    tag: str, what: str, value: Mapping[str, object], known: Mapping[str, type[Section]]
) -> tuple[tuple[str, ...], PydanticCustomError | str]:
    names = {name for model in known.values() for name in model.model_fields}
    for key in value:
        if key not in names and nearest(key, [tag]):
            return (key,), problem(f"unknown key '{key}' in the {what}", at="key", suggestion=tag)
    return (tag,), "missing"


def _bad_tag(
    name: object, what: str, choices: list[str], retired: Mapping[str, str]
) -> PydanticCustomError:
    if not isinstance(name, str):
        return problem(
            f"expected the name of a {what}, got {describe_value(name)}", choices=choices
        )
    if name in retired:
        return problem(
            f"the {what} '{name}' is no longer available",
            suggestion=retired[name],
            help=("the earlier system removed it too",),
        )
    return problem(f"unknown {what} '{name}'", suggestion=nearest(name, choices), choices=choices)


def _dump(value: object, handler: SerializerFunctionWrapHandler) -> object:
    if not isinstance(value, BaseModel):
        return handler(value)
    dumped = value.model_dump(mode="json")
    first = [tag for tag in ("name", "type") if tag in dumped]  # before inherited fields
    return {tag: dumped[tag] for tag in first} | dumped


# Plugins provide models that the annotation does not name.
DUMP_ANY: WrapSerializer = WrapSerializer(_dump)
