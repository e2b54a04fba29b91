"""Generate the JSON Schema of the experiment file, for editors."""

from __future__ import annotations

from typing import Any

from detcore.config._experiment import ExperimentConfig

__all__ = ["json_schema"]

_DIALECT = "https://json-schema.org/draft/2020-12/schema"


def json_schema() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of the experiment file.

    Editors use it to complete and check the file: every field has a description, closed sets are
    enums, unknown names are rejected. Rules between fields are not included.
    """
    schema = ExperimentConfig.model_json_schema()
    _tidy(schema)
    return {"$schema": _DIALECT, **schema, "title": "detcore experiment", "description": _ABOUT}


_ABOUT = (
    "An experiment file of detcore; 'detcore config check FILE' also checks rules between fields."
)


def _tidy(schema: Any) -> None:
    """Remove titles that pydantic derives from field names, and keywords specific to OpenAPI."""
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
