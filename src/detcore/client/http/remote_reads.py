"""Methods that read records, called over HTTP: arguments and results as JSON."""

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
        args: Those by position.
        kwargs: Those by name.
    """
    signature = inspect.signature(getattr(Database, name))
    bound = signature.bind(None, *args, **kwargs).arguments
    return {key: _plain(value) for key, value in bound.items() if key != "self"}


def answer_read(database: Database, name: str, arguments: Mapping[str, Any]) -> Any:
    """Call a method of a database with the arguments that `plain_arguments` returned.

    Returns:
        A JSON value, but for numbers that JSON does not have. An experiment's file is left out,
        and secrets in its configuration are starred out.

    Raises:
        InvalidArgumentError: If there is no such question, or it has not these arguments.
        DetcoreError: Any error that the method raises.
    """
    from pydantic import PydanticSchemaGenerationError, ValidationError

    if name not in READS:
        raise InvalidArgumentError(f"{name!r} is no question about records")
    method = getattr(database, name)
    hints = typing.get_type_hints(method)
    try:
        given = {
            key: _settled(_adapter(hints[key]).validate_python(value))
            for key, value in arguments.items()
        }
        inspect.signature(method).bind(**given)
    except (KeyError, TypeError, ValidationError, PydanticSchemaGenerationError) as error:
        told = str(error).partition("\n")[0]
        raise InvalidArgumentError(f"{name} cannot be asked with these arguments: {told}") from None
    for key, value in given.items():
        if isinstance(value, int) and not 0 <= value <= _MAX_INT:
            raise InvalidArgumentError(f"{name}: {key} is {value}, which is out of range")
    return _plain(_adapter(hints["return"]).dump_python(method(**given)))


def read_result(name: str, value: Any) -> Any:
    """Return the result of a method, from the JSON value that `answer_read` made of it.

    Raises:
        ValueError: If it is nothing that the method returns.
    """
    hints = typing.get_type_hints(getattr(Database, name))
    return _adapter(hints["return"]).validate_python(value)


def _adapter(kind: Any) -> Any:
    from pydantic import TypeAdapter

    return TypeAdapter(kind)


def _plain(value: Any) -> Any:
    """Return what JSON can say, but for NaN and the infinities, which pydantic would drop."""
    if isinstance(value, enum.Enum):
        return value.value
    if isinstance(value, datetime.datetime):
        return value.isoformat()
    if isinstance(value, Mapping):
        if "config_text" in value:  # an experiment
            config = visible_config(value["config"])
            value = {**value, "config": config, "config_text": None}
        return {str(key): _plain(item) for key, item in value.items()}
    settled = _settled(value)
    return [_plain(item) for item in settled] if isinstance(settled, list) else settled


def _settled(value: Any) -> Any:
    """Return a list for what may be gone through once only."""
    is_plain = value is None or isinstance(value, str | bytes | Mapping)
    return value if is_plain or not hasattr(value, "__iter__") else list(value)
