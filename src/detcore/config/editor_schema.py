"""JSON Schema of the experiment file, for editors."""

from __future__ import annotations

import pkgutil
from typing import Any

from pydantic.json_schema import models_json_schema

from detcore.config.experiment_config import TAGGED, ExperimentConfig
from detcore.config.hyperparameters import HYPERPARAMETER_TYPES
from detcore.config.mistakes import SettingsModels, built_in_models

_DIALECT = "https://json-schema.org/draft/2020-12/schema"
_ABOUT = "Experiment file of detcore. 'detcore config check FILE' also checks rules between fields."


def json_schema(models: SettingsModels | None = None) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the experiment file.

    Editors use it to complete and check the file. Every field has a description, closed sets are
    enums, and unknown names are rejected. Rules between fields are not included.

    Args:
        models: Models of the plugins' settings, as in `LoadOptions`. Default: built-in plugins.
    """
    schema = ExperimentConfig.model_json_schema()
    for section, section_models in (models or built_in_models()).items():
        tagged = TAGGED[section]
        kinds = [
            tagged.make_kind(name, pkgutil.resolve_name(model) if isinstance(model, str) else model)
            for name, model in section_models.items()
        ]
        references, definitions = models_json_schema(
            [(kind, "validation") for kind in kinds], ref_template="#/$defs/{model}"
        )
        schema["$defs"].update(definitions.get("$defs", {}))
        schema["$defs"][tagged.model.__name__] = {"oneOf": [*references.values()]}
    schema["properties"]["hyperparameters"] |= _describe_hyperparameters()
    _remove_titles(schema)
    return {"$schema": _DIALECT, **schema, "title": "detcore experiment", "description": _ABOUT}


def _describe_hyperparameters() -> dict[str, Any]:
    typed = [model.model_json_schema() for model in HYPERPARAMETER_TYPES.values()]
    return {
        "type": "object",
        "additionalProperties": {
            "anyOf": [
                *typed,
                {"type": ["string", "number", "boolean", "null", "array"]},
                {
                    "type": "object",
                    "title": "group",
                    "description": "Group of hyperparameters.",
                    "not": {"required": ["type"]},
                },
            ]
        },
    }


def _remove_titles(schema: Any) -> None:
    """Remove titles that pydantic derives from field names."""
    if isinstance(schema, dict):
        for field in schema.get("properties", {}).values():
            field.pop("title", None)
    for part in schema.values() if isinstance(schema, dict) else schema:
        if isinstance(part, (dict, list)):
            _remove_titles(part)
