"""Define every hook of detcore.

A plugin implements a hook with a function of the same name, marked `detcore.hookimpl`; it may
leave out arguments that it does not need. There are two kinds:

- A **register** hook is called once per process, when something of its kind is first needed. All
  plugins are asked, and their values are combined. A failure, or a value of the wrong type, is
  recorded as a problem of that plugin (``detcore plugins doctor``); the others work on.
- An **observer** hook is called with each event of a trial's log: in a thread of the runner while
  the trial trains (of the script, if no runner started it), or later in another process of
  detcore. Each plugin gets all events in order, one at a time, and no plugin waits for another. The
  return value is ignored. A hook that raises `detcore.errors.UnavailableError` is called with the
  same event again later. Any other failure is logged once, with the plugin and its distribution,
  and the event counts as delivered. None of this stops or delays training. The arguments are
  read-only.

Plugins are called in order of their names, the built-in one first; ``tryfirst`` and ``trylast`` of
`detcore.hookimpl` change that. Wrappers (``wrapper=True``) are refused: a wrapper would surround
the hooks of all other plugins, so that their failures could not be attributed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import pluggy

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import click

    from detcore.contract.hook_values import (
        CheckpointSaved,
        EventInfo,
        LauncherType,
        RendezvousType,
        RoutesType,
        SearcherType,
        StorageType,
    )
    from detcore.contract.values import Framework, TrialInfo

__all__ = [
    "detcore_checkpoint_saved", "detcore_register_commands",
    "detcore_register_framework", "detcore_register_launcher", "detcore_register_rendezvous",
    "detcore_register_routes", "detcore_register_searcher", "detcore_register_storage",
    "detcore_training_metrics", "detcore_trial_finished",
    "detcore_trial_started", "detcore_validation_metrics",
]  # fmt: skip


PROJECT = "detcore"
hookspec = pluggy.HookspecMarker(PROJECT)
hookimpl = pluggy.HookimplMarker(PROJECT)


@hookspec
def detcore_register_framework() -> Framework | list[Framework] | None:
    """Register a training framework.

    When: in a worker, before the trial class is matched with its framework; in the command line,
    when a checkpoint is loaded and when plugins are listed.
    Kind: register.

    Returns:
        One `Framework` or a list. It names its classes as ``"module:attribute"``, so this hook
        must not import the framework.

    Raises:
        Exception: Any; recorded as a problem of the plugin. A name that two plugins register is
            unavailable from both, and both are reported.
    """


@hookspec
def detcore_register_storage() -> StorageType | list[StorageType] | None:
    """Register a kind of checkpoint storage.

    When: when a checkpoint storage is opened, in the runner, a worker or the command line.
    Kind: register.

    Returns:
        One `StorageType` or a list. Names and URL schemes must be free.

    Raises:
        Exception: Any; recorded as a problem of the plugin. Storage types whose name or scheme two
            plugins register are unavailable from both, and both are reported.
    """


@hookspec
def detcore_register_launcher() -> LauncherType | list[LauncherType] | None:
    """Register a way to start the workers of a trial.

    When: in the runner, before the first trial starts.
    Kind: register.

    Returns:
        One `LauncherType` or a list. ``local`` is built in.

    Raises:
        Exception: Any; recorded as a problem of the plugin.
    """


@hookspec
def detcore_register_rendezvous() -> RendezvousType | list[RendezvousType] | None:
    """Register a service over which the workers of a library find each other.

    When: before the workers of a trial start, if there are several: each registered service runs
    as long as they do, and they get its environment variables.
    Kind: register.

    Returns:
        One `RendezvousType` or a list. It names the class as ``"module:Class"``, so this hook must
        not import the library.

    Raises:
        Exception: Any; recorded as a problem of the plugin.
    """


@hookspec
def detcore_register_searcher() -> SearcherType | list[SearcherType] | None:
    """Register a search method.

    When: in the runner, before the experiment is created, and each time it is resumed.
    Kind: register.

    Returns:
        One `SearcherType` or a list. ``single``, ``random``, ``grid``, ``adaptive_asha``
        and ``async_halving`` are built in.

    Raises:
        Exception: Any; recorded as a problem of the plugin.
    """


@hookspec
def detcore_register_commands() -> click.Command | list[click.Command] | None:
    """Register commands for the command line.

    When: for a command that is not built in, and when plugins are listed. A plugin whose
    distribution names the command in the entry-point group ``detcore.commands`` is the only one
    imported for it, and ``detcore --help`` lists the command.
    Kind: register.

    Returns:
        One `click.Command` (or group) or a list. Each has a name that is not a built-in command's.

    Raises:
        Exception: Any; recorded as a problem of the plugin.
    """


@hookspec
def detcore_register_routes() -> RoutesType | list[RoutesType] | None:
    """Register routes of the HTTP server.

    When: when a server starts (``detcore serve``, of the distribution ``detcore-server``).
    Kind: register.

    Returns:
        One `RoutesType` or a list. It names the function that makes the router as
        ``"module:function"``, so this hook must not import an HTTP library. A path that the server
        has itself stays the server's.

    Raises:
        Exception: Any; recorded as a problem of the plugin.
    """


@hookspec
def detcore_trial_started(trial: TrialInfo, event: EventInfo) -> None:
    """Observe the start or restart of a trial.

    When: once per worker process, after its context was opened.
    Kind: observer.

    Args:
        trial: The trial; ``trial.run_id`` counts its starts from 1, and
            ``trial.latest_checkpoint`` is the checkpoint that it resumes from.
        event: The event's number and time.

    Raises:
        UnavailableError: The event is kept, and delivered again later.
        Exception: Any other; logged once.
    """


@hookspec
def detcore_training_metrics(
    trial: TrialInfo,
    steps_completed: int,
    metrics: Mapping[str, float],
    batch_metrics: Sequence[Mapping[str, float]] | None,
    event: EventInfo,
) -> None:
    """Observe training metrics.

    When: after each report of training metrics; for a trial class, after each scheduling unit.
    Kind: observer.

    Args:
        trial: The trial.
        steps_completed: Batches completed since the trial first started.
        metrics: The metrics of the unit.
        batch_metrics: The metrics of each of its batches, or None if they were not kept.
        event: The event's number and time.

    Raises:
        UnavailableError: The event is kept, and delivered again later.
        Exception: Any other; logged once.
    """


@hookspec
def detcore_validation_metrics(
    trial: TrialInfo, steps_completed: int, metrics: Mapping[str, float], event: EventInfo
) -> None:
    """Observe validation metrics.

    When: after each report of validation metrics.
    Kind: observer.

    Args:
        trial: The trial.
        steps_completed: Batches completed since the trial first started.
        metrics: The validation metrics.
        event: The event's number and time.

    Raises:
        UnavailableError: The event is kept, and delivered again later.
        Exception: Any other; logged once.
    """


@hookspec
def detcore_checkpoint_saved(
    trial: TrialInfo, checkpoint: CheckpointSaved, event: EventInfo
) -> None:
    """Observe a checkpoint.

    When: after each commit; the files are complete. If the event is delivered late, they may have
    been deleted since.
    Kind: observer.

    Args:
        trial: The trial.
        checkpoint: The checkpoint and its location.
        event: The event's number and time.

    Raises:
        UnavailableError: The event is kept, and delivered again later.
        Exception: Any other; logged once.
    """


@hookspec
def detcore_trial_finished(
    trial: TrialInfo, state: str, error: str | None, event: EventInfo
) -> None:
    """Observe the end or pause of a trial.

    When: after the last event of a worker process. For a process that was killed, its runner
    delivers the event, unless the trial restarts immediately.
    Kind: observer.

    Args:
        trial: The trial.
        state: ``"COMPLETED"``, ``"PAUSED"`` (to be resumed), ``"ERROR"`` or ``"INVALID_HP"``.
        error: A one-line description of the error, or None.
        event: The event's number and time.

    Raises:
        UnavailableError: The event is kept, and delivered again later.
        Exception: Any other; logged once.
    """
