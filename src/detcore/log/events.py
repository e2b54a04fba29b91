"""The events of a trial: every durable fact that a worker reports, with its form in the log.

`encode_event` and `decode_event` are the codec. Lines may come from an untrusted peer or from a
different release. `decode_event` therefore checks every field, ignores unknown fields, and returns
None for a line without a valid event.
"""

import dataclasses
import re
import typing
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, ClassVar, TypeAlias

_UUID = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
_MAX_URL = 4096
_MAX_INTEGER = 2**63


def _is_count(value: object) -> bool:
    return type(value) is int and 0 <= value < _MAX_INTEGER


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_url(value: object) -> bool:
    return isinstance(value, str) and len(value) <= _MAX_URL


def _is_uuid(value: object) -> bool:
    return isinstance(value, str) and _UUID.fullmatch(value) is not None


def _is_object(value: object) -> bool:
    return isinstance(value, dict)


def _is_sizes(value: object) -> bool:
    return isinstance(value, dict) and all(map(_is_count, value.values()))


def _is_batches(value: object) -> bool:
    """Whether a value can be the metrics of several batches."""
    return isinstance(value, list) and all(isinstance(batch, dict) for batch in value)


def _is_seconds(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_difference(value: object) -> bool:
    """Whether a value can be the fields of a `detcore.data.StepDifference`."""
    return (
        isinstance(value, dict)
        and _is_count(value.get("step"))
        and isinstance(value.get("kind"), str)
        and isinstance(value.get("tensors"), list | tuple)
        and all(isinstance(name, str) for name in value["tensors"])
    )


def _or_none(check: Callable[[object], bool]) -> Callable[[object], bool]:
    return lambda value: value is None or check(value)


# Types of fields, each with the check of its value. `_CHECKS` reads them, so annotations are
# evaluated here: there is no `from __future__ import annotations`.
Count: TypeAlias = Annotated[int, _is_count]
Object: TypeAlias = Annotated[Mapping[str, Any], _is_object]
Seconds: TypeAlias = Annotated[float | None, _or_none(_is_seconds)]
Sizes: TypeAlias = Annotated[Mapping[str, int], _is_sizes]
Text: TypeAlias = Annotated[str | None, _or_none(_is_text)]
Url: TypeAlias = Annotated[str, _is_url]
Uuid: TypeAlias = Annotated[str, _is_uuid]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialStarted:
    """A run of the trial opened its context."""

    KIND: ClassVar[str] = "trial_started"
    run_id: Count


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Metrics:
    steps_completed: Count
    metrics: Object
    batch_metrics: Annotated[Sequence[Mapping[str, Any]] | None, _or_none(_is_batches)] = None
    n_records: Annotated[int | None, _or_none(_is_count)] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrainingReport(_Metrics):
    """Training metrics over the batches since the last report."""

    KIND: ClassVar[str] = "training"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ValidationReport(_Metrics):
    """Metrics of a validation."""

    KIND: ClassVar[str] = "validation"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointStarted:
    """A checkpoint is being written."""

    KIND: ClassVar[str] = "checkpoint_started"
    uuid: Uuid
    storage_url: Url
    steps_completed: Count


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointCommitted:
    """The manifest of a checkpoint is written, so the checkpoint exists.

    Attributes:
        uuid: Identifier of the checkpoint.
        steps_completed: Number of completed batches at the save.
        metadata: The user's metadata.
        resources: File sizes in bytes, by name.
        url: URL of the checkpoint. If None, observers are not notified.
        path: Directory of the checkpoint, if the storage is a local directory.
        size_bytes: Sum of the file sizes.
        stalled_s: Seconds for which training waited for the save; None if unknown.
        total_s: Duration of the save in seconds; None if unknown.
    """

    KIND: ClassVar[str] = "checkpoint_committed"
    uuid: Uuid
    steps_completed: Count
    metadata: Object
    resources: Sizes
    url: Annotated[str | None, _or_none(_is_url)] = None
    path: Text = None
    size_bytes: Count = 0
    stalled_s: Seconds = None
    total_s: Seconds = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDeleting:
    """All files of a checkpoint are about to be deleted."""

    KIND: ClassVar[str] = "checkpoint_deleting"
    uuid: Uuid


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDeleted:
    """Files of a checkpoint were deleted.

    If `resources` are left, the other files are about to be deleted.
    """

    KIND: ClassVar[str] = "checkpoint_deleted"
    uuid: Uuid
    resources: Sizes


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointDamaged:
    """Files of a checkpoint are missing or have changed."""

    KIND: ClassVar[str] = "checkpoint_damaged"
    uuid: Uuid


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class ResumeCompared:
    """A resumed run was compared with the steps that an earlier run had trained already.

    Attributes:
        start_step: The step of the checkpoint from which the run resumed.
        last_step: The last compared step; `start_step` if there was nothing to compare.
        num_compared: Number of compared steps.
        difference: Step, kind and tensors of the first difference, or None.
    """

    KIND: ClassVar[str] = "resume_compared"
    start_step: Count
    last_step: Count
    num_compared: Count
    difference: Annotated[Mapping[str, Any] | None, _or_none(_is_difference)] = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialFailed:
    """The training code reported that the trial failed, before its process ends.

    Attributes:
        state: Always "ERROR".
        error: The reason.
    """

    KIND: ClassVar[str] = "trial_state"
    error: Annotated[str, _is_text]
    state: Annotated[str, lambda value: value == "ERROR"] = "ERROR"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class TrialFinished:
    """A run of the trial ended.

    Attributes:
        state: A recorded state, or "INVALID_HP".
        error: The error in one line, or None.
    """

    KIND: ClassVar[str] = "trial_finished"
    state: Annotated[str, _is_text]
    error: Text = None


CheckpointEvent: TypeAlias = (
    CheckpointStarted
    | CheckpointCommitted
    | CheckpointDeleting
    | CheckpointDeleted
    | CheckpointDamaged
)
"""A change of a checkpoint's state, by a trial or by a command."""

Event: TypeAlias = (
    TrialStarted
    | TrainingReport
    | ValidationReport
    | CheckpointEvent
    | ResumeCompared
    | TrialFailed
    | TrialFinished
)

_TYPES: dict[str, type[Event]] = {
    event_class.KIND: event_class for event_class in typing.get_args(Event)
}
_CHECKS: dict[type[Event], dict[str, Callable[[object], bool]]] = {
    event_class: {
        field.name: typing.get_args(field.type)[1] for field in dataclasses.fields(event_class)
    }
    for event_class in _TYPES.values()
}


def encode_event(event: Event) -> dict[str, Any]:
    """Return an event as the payload of a line of kind ``event.KIND``."""
    return {name: getattr(event, name) for name in _CHECKS[type(event)]}


def decode_event(kind: str, payload: object) -> Event | None:
    """Return the event of a line, or None for an unknown kind or an invalid payload."""
    event_class = _TYPES.get(kind)
    if event_class is None or not isinstance(payload, dict):
        return None
    checks = _CHECKS[event_class]
    values = {name: payload[name] for name in checks if name in payload}
    if not all(checks[name](value) for name, value in values.items()):
        return None
    try:
        return event_class(**values)
    except TypeError:  # a required field is missing
        return None
