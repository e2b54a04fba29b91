"""Define every hook of detcore.

A plugin implements a hook with a function of the same name, marked `detcore.hookimpl`. The
function may leave out arguments that it does not need. There are two kinds:

- A **register** hook is called once per process, when something of its kind is first needed. It is
  called for every plugin, and the results are combined. If it raises, or returns a value of the
  wrong type, this is recorded as a problem of that plugin (``detcore plugins doctor``), and the
  remaining plugins keep working.
- An **observer** hook is called with each event of a trial's log. While the trial trains, a thread
  of the runner (or of the script, if no runner started it) calls the hook; later, another detcore
  process may do so. Each plugin receives all events in order, one at a time, and no plugin waits
  for another. The return value is ignored. If a hook raises `detcore.errors.UnavailableError`, it
  is called with the same event again later. Any other failure is logged once, with the plugin and
  its distribution, and the event counts as delivered. None of this stops or delays training. The
  arguments are read-only.

Plugins are called in the order of their names, the built-in plugin first. ``tryfirst`` and
``trylast`` of `detcore.hookimpl` change this order. Wrappers (``wrapper=True``) are rejected: a
wrapper would surround the hooks of all other plugins, so failures could not be attributed.

The observer hooks below are in the order of the events of a trial.
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


# --- Register hooks ---


@hookspec
def detcore_register_framework() -> Framework | list[Framework] | None:
    """Register a training framework.

    When: in a worker, before the trial class is matched with its framework. Commands also call it
    to load a checkpoint and to list plugins.
    Kind: register.

    Example::

        >>> from detcore.plugins import hookimpl
        >>> from detcore.types import Framework
        >>> @hookimpl
        ... def detcore_register_framework():
        ...     return Framework(
        ...         name="jax",
        ...         trial_class="my_package.trial:JaxTrial",
        ...         context_class="my_package.context:JaxContext",
        ...         controller="my_package.controller:JaxController",
        ...     )

    Returns:
        One `Framework` or a list. It names its classes as ``"module:attribute"``, so this hook
        must not import the framework. If two plugins register the same name, neither provides it,
        and both are reported.
    """


@hookspec
def detcore_register_storage() -> StorageType | list[StorageType] | None:
    """Register a kind of checkpoint storage.

    When: when the runner, a worker or a command opens a checkpoint storage.
    Kind: register.

    Example::

        >>> from detcore.plugins import StorageType, hookimpl
        >>> @hookimpl
        ... def detcore_register_storage():
        ...     return StorageType(
        ...         name="webdav",
        ...         schemes=("webdav",),
        ...         settings="my_package.settings:WebdavSettings",
        ...         backend="my_package.storage:open_webdav",
        ...     )

    Returns:
        One `StorageType` or a list. If two plugins register the same name or URL scheme, neither
        provides it, and both are reported.
    """


@hookspec
def detcore_register_launcher() -> LauncherType | list[LauncherType] | None:
    """Register a way to start the workers of a trial.

    When: in the runner, before the first trial starts.
    Kind: register.

    Example::

        >>> from detcore.plugins import LauncherType, hookimpl
        >>> @hookimpl
        ... def detcore_register_launcher():
        ...     return LauncherType(name="slurm", launcher="my_package.launcher:SlurmLauncher")

    Returns:
        One `LauncherType` or a list. ``local`` is built in.
    """


@hookspec
def detcore_register_rendezvous() -> RendezvousType | list[RendezvousType] | None:
    """Register a rendezvous service, through which the workers of a library find each other.

    When: before several workers of a trial start. Each registered service runs as long as the
    workers do, and they receive its environment variables.
    Kind: register.

    Example::

        >>> from detcore.plugins import RendezvousType, hookimpl
        >>> @hookimpl
        ... def detcore_register_rendezvous():
        ...     return RendezvousType(name="gloo", service="my_package.rendezvous:GlooService")

    Returns:
        One `RendezvousType` or a list. It names the class as ``"module:Class"``, so this hook must
        not import the library.
    """


@hookspec
def detcore_register_searcher() -> SearcherType | list[SearcherType] | None:
    """Register a search method.

    When: in the runner, before the experiment is created, and each time it is resumed.
    Kind: register.

    Example::

        >>> from detcore.plugins import SearcherType, hookimpl
        >>> @hookimpl
        ... def detcore_register_searcher():
        ...     return SearcherType(name="hyperband", method="my_package.search:Hyperband")

    Returns:
        One `SearcherType` or a list. ``single``, ``random``, ``grid``, ``adaptive_asha``
        and ``async_halving`` are built in.
    """


@hookspec
def detcore_register_commands() -> click.Command | list[click.Command] | None:
    """Register commands for the command line.

    When: when a user types a command that is not built in, and when plugins are listed. If a
    distribution names the command in the entry-point group ``detcore.commands``, only its plugin
    is imported, and ``detcore --help`` lists the command.
    Kind: register.

    Example::

        >>> import click
        >>> from detcore.plugins import hookimpl
        >>> @click.command("hello")
        ... def print_hello():
        ...     click.echo("hello")
        >>> @hookimpl
        ... def detcore_register_commands():
        ...     return print_hello

    Returns:
        One `click.Command` (or group) or a list. No name may be that of a built-in command.
    """


@hookspec
def detcore_register_routes() -> RoutesType | list[RoutesType] | None:
    """Register routes of the HTTP server.

    When: when a server starts (``detcore serve``, of the distribution ``detcore-server``).
    Kind: register.

    Example::

        >>> from detcore.plugins import RoutesType, hookimpl
        >>> @hookimpl
        ... def detcore_register_routes():
        ...     return RoutesType(name="health", make_router="my_package.routes:make_router")

    Returns:
        One `RoutesType` or a list. It names the function that creates the router as
        ``"module:function"``, so this hook must not import an HTTP library. The server's own paths
        take precedence.
    """


# --- Observer hooks, in the order of events ---


@hookspec
def detcore_trial_started(trial: TrialInfo, event: EventInfo) -> None:
    """Observe the start or restart of a trial.

    When: once per worker process, after its context was opened.
    Kind: observer.

    Args:
        trial: The trial. ``trial.run_id`` counts its starts from 1, and
            ``trial.latest_checkpoint`` is the checkpoint from which it resumes.
        event: The event's number and time.
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

    When: after each report of training metrics. Trial classes report after each scheduling unit.
    Kind: observer.

    Args:
        trial: The trial.
        steps_completed: Batches completed since the trial first started.
        metrics: The metrics of the unit.
        batch_metrics: The metrics of each batch of the unit, or None if they were not kept.
        event: The event's number and time.
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
    """


@hookspec
def detcore_checkpoint_saved(
    trial: TrialInfo, checkpoint: CheckpointSaved, event: EventInfo
) -> None:
    """Observe a checkpoint.

    When: after each commit, when the files are complete. If the event is delivered late, the files
    may have been deleted since.
    Kind: observer.

    Args:
        trial: The trial.
        checkpoint: The checkpoint and its location.
        event: The event's number and time.
    """


@hookspec
def detcore_trial_finished(
    trial: TrialInfo, state: str, error: str | None, event: EventInfo
) -> None:
    """Observe the end or pause of a trial.

    When: after the last event of a worker process. If the process was killed, the runner delivers
    the event, unless the trial restarts immediately.
    Kind: observer.

    Args:
        trial: The trial.
        state: ``"COMPLETED"``, ``"PAUSED"`` (to be resumed), ``"ERROR"`` or ``"INVALID_HP"``.
        error: A one-line description of the error, or None.
        event: The event's number and time.
    """
