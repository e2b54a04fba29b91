"""Look up which names are valid at a place."""

from __future__ import annotations

import types
import typing
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from detcore.config._experiment import ExperimentConfig
from detcore.config._hyperparameters import HYPERPARAMETER_TYPES
from detcore.config._length import UNITS
from detcore.config._searchers import OF_ALL_SEARCHERS, SEARCHERS, PluginSearcher
from detcore.config._sections import PluginLauncher
from detcore.config._source import Place
from detcore.config._storage import STORAGE_TYPES, PluginStorage

__all__ = ["Models", "field_at", "homes", "model_at", "valid_names"]

# By section ("searcher", "checkpoint_storage", "launcher"), then by name; None: there is no model.
Models = Mapping[str, Mapping[str, "type[BaseModel] | None"]]
_COMMON: Mapping[Place, Collection[str]] = {
    ("checkpoint_storage",): PluginStorage.model_fields,
    ("searcher",): (*PluginSearcher.model_fields, *OF_ALL_SEARCHERS),
    ("launcher",): PluginLauncher.model_fields,
}
# The field that decides, models by its value, and the model where the value is not known.
_TAGGED: Mapping[str, tuple[str, Mapping[str, type[BaseModel]], type[BaseModel] | None]] = {
    "searcher": ("name", SEARCHERS, None),
    "checkpoint_storage": ("type", STORAGE_TYPES, None),
    "launcher": ("name", {}, PluginLauncher),
}


def valid_names(place: Place, data: Any, plugins: Models) -> list[str]:
    """Return the names that a mapping at `place` may have; empty if any name is valid."""
    model = model_at(place, data, plugins)
    if model is not None:
        common = () if model in SEARCHERS.values() else _COMMON.get(place, ())
        return list(dict.fromkeys([*model.model_fields, *common]))
    return list(UNITS) if place and str(place[-1]).endswith(("_period", "_length")) else []


def field_at(place: Place, data: Any, plugins: Models) -> FieldInfo | None:
    """Return the field at `place`, or None if the models have none."""
    model = model_at(place[:-1], data, plugins) if place else None
    return None if model is None else model.model_fields.get(str(place[-1]))


def model_at(place: Place, data: Any, plugins: Models) -> type[BaseModel] | None:
    """Return the model of the section at `place`.

    Args:
        place: Path from the top of the file.
        data: The configuration as written, which selects among alternative models.
        plugins: Models of settings that plugins provide.
    """
    model: type[BaseModel] | None = ExperimentConfig
    value: Any = data
    for depth, element in enumerate(place):
        value = _child(value, element)
        if isinstance(element, int):
            continue  # an item has the same model as its list
        if place[0] == "hyperparameters" and depth > 0:
            kind = value.get("type") if isinstance(value, Mapping) else None
            model = HYPERPARAMETER_TYPES.get(kind) if isinstance(kind, str) else None
        elif depth == 0 and element in _TAGGED:
            tag, known, model = _TAGGED[element]
            name = value.get(tag) if isinstance(value, Mapping) else value
            if isinstance(name, str):
                model = plugins.get(element, {}).get(name) or known.get(name, model)
        else:
            info = None if model is None else model.model_fields.get(str(element))
            model = None if info is None else next(_models(info.annotation), None)
    return model


def homes(name: str) -> list[Place]:
    """Return every place where a field of this name is valid, once per section."""
    found: dict[Place, None] = {}
    for place, model in _sections():
        if name in model.model_fields:
            here: Place = (*place, name)
            found[here] = None
    if name == "global_batch_size":
        found[("hyperparameters", name)] = None
    return list(found)


def _sections() -> Iterator[tuple[Place, type[BaseModel]]]:
    yield (), ExperimentConfig
    for searcher in SEARCHERS.values():
        yield ("searcher",), searcher
    for storage in STORAGE_TYPES.values():
        yield ("checkpoint_storage",), storage
    for name, info in ExperimentConfig.model_fields.items():
        if name not in ("searcher", "checkpoint_storage"):
            yield from (((name,), model) for model in _models(info.annotation))


def _models(annotation: Any) -> Iterator[type[BaseModel]]:
    """Yield the models in an annotation such as ``list[Device] | None``."""
    if isinstance(annotation, type) and not isinstance(annotation, types.GenericAlias):
        if issubclass(annotation, BaseModel):
            yield annotation
        return
    for argument in typing.get_args(annotation):
        yield from _models(argument)


def _child(value: Any, element: str | int) -> Any:
    if isinstance(value, Mapping):
        return value.get(element)
    if isinstance(value, list) and isinstance(element, int) and element < len(value):
        return value[element]
    return None
