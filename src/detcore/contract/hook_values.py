"""Define the values that plugins register and observers receive. Imports only the stdlib."""

from __future__ import annotations

import dataclasses
from pathlib import Path

__all__ = [
    "OBSERVER_HOOKS", "CheckpointSaved", "EventInfo",
    "LauncherType", "RendezvousType", "RoutesType", "SearcherType", "StorageType",
]  # fmt: skip


OBSERVER_HOOKS = (
    "detcore_trial_started",
    "detcore_training_metrics",
    "detcore_validation_metrics",
    "detcore_checkpoint_saved",
    "detcore_trial_finished",
)
"""Names of the hooks that observe trials."""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StorageType:
    """A kind of checkpoint storage.

    The objects are named as ``"module:attribute"`` and imported on first use.

    Attributes:
        name: Value of ``checkpoint_storage.type`` in an experiment file, such as ``"s3"``.
        schemes: URL schemes of this type, without ``://``, such as ``("s3",)``; may be empty.
        settings: The pydantic model of the ``checkpoint_storage`` section.
        backend: A callable ``(settings) -> StorageBackend``.
    """

    name: str
    schemes: tuple[str, ...]
    settings: str
    backend: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class LauncherType:
    """A way to start the workers of a trial.

    Attributes:
        name: Name under ``launcher`` in an experiment file, such as ``"local"``.
        launcher: The launcher class, as ``"module:Class"``. It implements
            `detcore.launch.Launcher` and receives its settings from the experiment file as keyword
            arguments.
        settings: The pydantic model of these settings, as ``"module:Class"``; a file with other
            settings is rejected. If empty, the class itself rejects them when a run starts.
    """

    name: str
    launcher: str
    settings: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearcherType:
    """A search method.

    Attributes:
        name: Value of ``searcher.name`` in an experiment file.
        method: The class of the method, as ``"module:Class"``. It implements
            `detcore.search.SearchMethod` and is called with a `detcore.search.SearchSetup`.
        settings: The pydantic model of its settings, as ``"module:Class"``, without the settings
            that all methods share (``metric``, ``smaller_is_better``, ``max_length``,
            ``source_trial_id``, ``source_checkpoint_uuid``). A file with other settings is
            rejected. If empty, all settings are passed on unchecked.
    """

    name: str
    method: str
    settings: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RendezvousType:
    """A rendezvous service for a library whose workers open their own connections.

    Attributes:
        name: Name of the service, such as ``"horovod"``.
        service: A class without arguments, as ``"module:Class"``, that implements
            `detcore.launch.nodes.RendezvousService`.
    """

    name: str
    service: str


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class RoutesType:
    """Routes of the HTTP server, ``detcore serve``.

    Attributes:
        name: Name of these routes, for messages.
        make_router: A function without arguments that returns a ``fastapi.APIRouter``, as
            ``"module:function"``. It is called when a server starts.
        has_guards: Whether the routes check permissions themselves. If not, the server answers
            them only for users who have logged in.
    """

    name: str
    make_router: str
    has_guards: bool = False


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A committed checkpoint.

    Attributes:
        uuid: Identifier of the checkpoint.
        steps_completed: Steps (batches) of the trial at the checkpoint; >= 0.
        url: URL of its files.
        size_bytes: Sum of the file sizes.
        path: Directory of its files, if the storage is a local directory.
        stalled_s: Seconds for which training waited, including the wait for the previous save;
            None if unknown.
        total_s: Seconds from the start of the save to its record; None if unknown.
    """

    uuid: str
    steps_completed: int
    url: str
    size_bytes: int
    path: Path | None = None
    stalled_s: float | None = None
    total_s: float | None = None


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class EventInfo:
    """Identity and time of an event of a trial.

    ``trial.trial_id``, ``trial.run_id`` and `number` together identify an event permanently. They
    and `time` stay the same when the event is delivered again.

    Attributes:
        number: Number of the event in the run of the trial, ascending from 1 with gaps.
        time: Time of the event in seconds since 1970, not the time of delivery.
        is_repeat: Whether this plugin may have received the event before, because the hook reported
            an unreachable service or the process was killed while the hook ran.
    """

    number: int
    time: float
    is_repeat: bool = False
