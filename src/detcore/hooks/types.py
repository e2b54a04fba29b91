"""What plugins register, and what observers are told. Imports nothing but the stdlib."""

from __future__ import annotations

import dataclasses
from pathlib import Path

__all__ = ["CheckpointSaved", "EventInfo", "LauncherType", "SearcherType", "StorageType"]


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class StorageType:
    """A kind of checkpoint storage.

    The objects are named as ``"module:attribute"`` and imported on first use.

    Attributes:
        name: What an experiment file says under ``checkpoint_storage.type``, such as ``"s3"``.
        schemes: URL schemes that it serves, without ``://``, such as ``("s3",)``; may be empty.
        settings: The pydantic model of its part of the experiment file.
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
        name: What an experiment file says under ``launcher``, such as ``"local"``.
        launcher: The launcher class, as ``"module:Class"``; it is called with the settings that an
            experiment file gives it, as keywords, and is a `detcore.launch.Launcher`.
        settings: The pydantic model of these settings, as ``"module:Class"``: a file with others is
            refused. Empty: their names are compared with the arguments of the class when a run
            starts.
    """

    name: str
    launcher: str
    settings: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class SearcherType:
    """A search method.

    Attributes:
        name: What an experiment file says under ``searcher.name``.
        method: The class of the method, as ``"module:Class"``; it is called with a
            `detcore.search.SearchSetup` and is a `detcore.search.SearchMethod`.
        settings: The pydantic model of the settings that it has besides those of all methods
            (``metric``, ``smaller_is_better``, ``max_length``, ``source_trial_id``,
            ``source_checkpoint_uuid``), as ``"module:Class"``: a file with others is refused.
            Empty: every setting is passed on as it is.
    """

    name: str
    method: str
    settings: str = ""


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointSaved:
    """A checkpoint that was committed.

    Attributes:
        uuid: Identifier of the checkpoint.
        steps_completed: Steps (batches) of the trial that it holds; >= 0.
        url: Where its files are.
        size_bytes: Sum of the sizes of its files.
        path: The folder of its files, where the storage is a folder of this machine.
        stalled_s: How long training stood still for it, in seconds; a wait for the save before is
            part of that. None where it is not known.
        total_s: How long saving took, in seconds, from its beginning to its record. None where it
            is not known.
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
    """Which event of a trial an observer is told of.

    ``trial.trial_id``, ``trial.run_id`` and `number` together name an event for ever; they, and
    `time`, are the same when it comes again.

    Attributes:
        number: Its number in the run of the trial, from 1 and rising; some numbers are left out.
        time: When it happened, in seconds since 1970; not when it is told.
        is_repeat: Whether this plugin may have been told of it before: the hook said that its
            service is not reachable, or the process was killed while the hook ran.
    """

    number: int
    time: float
    is_repeat: bool = False
