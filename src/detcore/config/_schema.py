"""The JSON Schema of the experiment file, for editors."""

from __future__ import annotations

from typing import Any

from detcore.config._experiment import ExperimentConfig

__all__ = ["json_schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the experiment file.

    Editors complete and check the file with it: every field has a description, closed sets are
    enums, unknown names are refused. Rules between fields are not part of it.
    """
    schema = ExperimentConfig.model_json_schema()
    _tidy(schema)
    return {"$schema": _DIALECT, **schema, "title": "detcore experiment", "description": _ABOUT}


_ABOUT = (
    "An experiment file of detcore; 'detcore config check FILE' also checks rules between fields."
)


def _tidy(schema: Any) -> None:
    """Drop the titles that pydantic makes from field names, and what only OpenAPI knows."""
    if isinstance(schema, list):
        for item in schema:
            _tidy(item)
    elif isinstance(schema, dict):
        schema.pop("discriminator", None)
        for field in schema.get("properties", {}).values():
            field.pop("title", None)
        for word in ("properties", "$defs"):
            for part in schema.get(word, {}).values():
                _tidy(part)
        for word in ("allOf", "anyOf", "oneOf", "items", "additionalProperties"):
            _tidy(schema.get(word))
