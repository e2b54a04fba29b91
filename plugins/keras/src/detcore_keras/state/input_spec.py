"""Convert the shapes and types of a model's inputs to JSON, and build a model from them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from detcore.errors import InvalidCheckpointError
from detcore_keras.frameworks import backend


def spec_to_json(spec: Any) -> Any:
    """Convert the nested specification of a batch to JSON values; unsupported kinds to None."""
    if isinstance(spec, Mapping):
        return {"kind": "dict", "items": {name: spec_to_json(spec[name]) for name in spec}}
    if isinstance(spec, tuple | list):
        kind = "list" if isinstance(spec, list) else "tuple"
        return {"kind": kind, "items": [spec_to_json(part) for part in spec]}
    return backend.spec_to_json(spec)


def build_from_record(model: Any, record: Mapping[str, Any]) -> bool:
    """Create a model's weights if its first call creates them. Return whether the weights exist.

    Args:
        model: The model.
        record: Content of ``variables.json``, with the specification of the model's inputs.

    Raises:
        InvalidCheckpointError: If the specification is damaged, or the model cannot be called with
            such inputs.
    """
    if not model.built and record.get("input_spec") is not None:
        build_from_spec(model, spec_from_json(record["input_spec"]))
    return bool(model.built)


def spec_from_json(value: Any) -> Any:
    """Return the nested specification for a result of `spec_to_json`.

    Raises:
        InvalidCheckpointError: If the value is not such a result.
    """
    try:
        return _from_json(value)
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(
            f"the checkpoint's input_spec is damaged: {error!r}"
        ) from error


def build_from_spec(model: Any, inputs: Any) -> None:
    """Create a model's weights, without computing anything.

    Args:
        model: A Keras model whose first call creates its weights.
        inputs: Nested specification of one batch of its inputs.

    Raises:
        InvalidCheckpointError: If the model cannot be called with such inputs.
    """
    try:
        backend.call_symbolically(model, inputs)
    except (NotImplementedError, TypeError, ValueError) as error:
        raise InvalidCheckpointError(
            f"the weights of {type(model).__name__} cannot be created by calling it with the "
            f"inputs it was trained on ({inputs}): {type(error).__name__}: {error}\n"
            "Either the code that builds the model has changed since the checkpoint was "
            "saved, or the model has no call().\n"
            "Create its weights in build_model, for example with model.build(input_shape)."
        ) from error


def _from_json(value: Any) -> Any:
    if value is None:
        return None
    kind = value["kind"]
    if kind == "dict":
        return {name: _from_json(part) for name, part in value["items"].items()}
    if kind in {"list", "tuple"}:
        parts = [_from_json(part) for part in value["items"]]
        return parts if kind == "list" else tuple(parts)
    return backend.spec_from_json(value)
