"""Remote calls of methods that read records, with arguments and results as JSON."""

from __future__ import annotations

import datetime
import enum
import inspect
import typing
from collections.abc import Mapping
from typing import Any

from detcore.contract.errors import InvalidArgumentError
from detcore.record_descriptions import visible_config
from detcore.records import Database

READS = frozenset(
    {
        "best_validation",
        "checkpoint_metrics",
        "count_experiments",
        "count_metrics",
        "count_trials",
        "events",
        "is_experiment_alive",
        "get_checkpoint",
        "get_experiment",
        "get_model",
        "get_trial",
        "latest_checkpoint",
        "list_checkpoints",
        "list_experiments",
        "list_models",
        "list_running_jobs",
        "list_runs",
        "list_search_events",
        "list_trials",
        "list_versions",
        "metric_curves",
        "metric_names",
        "metrics",
        "observe_experiment",
        "list_registered_checkpoints",
        "list_shared_prefixes",
        "summarize_trials",
        "top_checkpoints",
        "top_trials",
        "trial_best_validation",
    }
)
_MAX_INT = 2**63 - 1


def plain_arguments(name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, as JSON values.

    Args:
        name: One of `READS`.
        args: Positional arguments.
        kwargs: Keyword arguments.
    """
    signature = inspect.signature(getattr(Database, name))
    bound = signature.bind(None, *args, **kwargs).arguments
    return {key: _to_json_value(value) for key, value in bound.items() if key != "self"}


def answer_read(database: Database, name: str, arguments: Mapping[str, Any]) -> Any:
    """Call a method of a database with the arguments that `plain_arguments` returned.

    Returns:
        A JSON value that may also contain NaN and infinities. The text of an experiment's file is
        left out, and secrets in its configuration are masked.

    Raises:
        InvalidArgumentError: If the method is unknown, or the arguments are invalid.
        DetcoreError: Any error that the method raises.
    """
    from pydantic import PydanticSchemaGenerationError, ValidationError

    if name not in READS:
        raise InvalidArgumentError(f"{name!r} is not a method that reads records")
    method = getattr(database, name)
    hints = typing.get_type_hints(method)
    try:
        values = {
            key: _materialize(_make_adapter(hints[key]).validate_python(value))
            for key, value in arguments.items()
        }
        inspect.signature(method).bind(**values)
    except (KeyError, TypeError, ValidationError, PydanticSchemaGenerationError) as error:
        reason = str(error).partition("\n")[0]
        raise InvalidArgumentError(f"invalid arguments of {name}: {reason}") from None
    for key, value in values.items():
        if isinstance(value, int) and not 0 <= value <= _MAX_INT:
            raise InvalidArgumentError(f"{name}: {key} is {value}, which is out of range")
    return _to_json_value(_make_adapter(hints["return"]).dump_python(method(**values)))


def read_result(name: str, value: Any) -> Any:
    """Return the result of a method from the JSON value that `answer_read` returned.

    Raises:
        ValueError: If it does not have the result type of the method.
    """
    hints = typing.get_type_hints(getattr(Database, name))
    return _make_adapter(hints["return"]).validate_python(value)


def _make_adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _to_json_value(value: Any) -> Any:
    """Return a JSON value that may contain NaN and infinities, which pydantic would drop."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        if "config_text" in value:  # an experiment
            config = visible_config(value["config"])
            value = {**value, "config": config, "config_text": None}
        return {str(key): _to_json_value(item) for key, item in value.items()}
    items = _materialize(value)
    return [_to_json_value(item) for item in items] if isinstance(items, list) else items


def _materialize(value: Any) -> Any:
    """Return a list for an iterable, which may support only one iteration."""
    is_plain = value is None or isinstance(value, str | bytes | Mapping)
    return value if is_plain or not hasattr(value, "__iter__") else list(value)
