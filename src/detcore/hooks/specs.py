"""Every hook of detcore.

A plugin implements a hook with a function of the same name, marked `detcore.hookimpl`; it may
leave out arguments that it does not need. There are two kinds:

- A **register** hook is called once per process, when something of its kind is first needed. All
  plugins are asked, and what they return is put together. A failure, or a value of the wrong
  type, is recorded as a problem of that plugin (``detcore plugins doctor``); the others work on.
- An **observer** hook is called with each event of a trial's log: in a thread of the runner while
  the trial trains (of the script, if no runner started it), or later in another process of
  detcore. Each plugin gets all events in order, one at a time, and no plugin waits for another. The
  return value is ignored. A hook that raises `detcore.errors.UnavailableError` is called with the
  same event again later. Any other failure is logged once, with the plugin and its distribution,
  and the event counts as delivered. None of this stops or delays training. What is handed over is
  read-only.

Plugins are called in order of their names, the built-in one first; ``tryfirst`` and ``trylast`` of
`detcore.hookimpl` change that. Wrappers (``wrapper=True``) are refused: one would stand between
detcore and the hooks of all other plugins, whose failures could then not be told apart.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from detcore.hooks._markers import hookspec

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    import click

    from detcore.hooks.types import (
        CheckpointSaved,
        EventInfo,
        LauncherType,
        SearcherType,
        StorageType,
    )
    from detcore.types import Framework, TrialInfo

__all__ = [
    "detcore_checkpoint_saved",
    "detcore_register_commands",
    "detcore_register_framework",
    "detcore_register_launcher",
    "detcore_register_searcher",
    "detcore_register_storage",
    "detcore_training_metrics",
    "detcore_trial_finished",
    "detcore_trial_started",
    "detcore_validation_metrics",
]


# -- register hooks -------------------------------------------------------------------------------


@hookspec
def detcore_register_framework() -> Framework | list[Framework] | None:
    """Teach detcore a training framework.

    When: in a worker, before the trial class is matched with its framework; in the command line,
    when a checkpoint is loaded and when plugins are listed.
    Kind: register.

    Returns:
        One `Framework` or a list. It names its classes as ``"module:attribute"``, so this hook
        must not import the framework.

    Raises:
        Exception: Any; recorded as a problem of the plugin. Two plugins that register one
            name lose it both, and both are named.
    """


@hookspec
def detcore_register_storage() -> StorageType | list[StorageType] | None:
    """Add a kind of checkpoint storage.

    When: when a checkpoint storage is opened, in the runner, a worker or the command line.
    Kind: register.

    Returns:
        One `StorageType` or a list. Names and URL schemes must be free.

    Raises:
        Exception: Any; recorded as a problem of the plugin. Two plugins that register one name
            or one scheme lose those storage types both, and both are named.
    """


@hookspec
def detcore_register_launcher() -> LauncherType | list[LauncherType] | None:
    """Add a way to start the workers of a trial.

    When: in the runner, before the first trial starts.
    Kind: register.

    Returns:
        One `LauncherType` or a list. ``local`` is built in.

    Raises:
        Exception: Any; recorded as a problem of the plugin.
    """


@hookspec
def detcore_register_searcher() -> SearcherType | list[SearcherType] | None:
    """Add a search method.

    When: in the runner, before the experiment is created; each time when it goes on.
    Kind: register.

    Returns:
        One `SearcherType` or a list. ``single``, ``random``, ``grid``, ``adaptive_asha``,
        ``async_halving`` and ``optuna`` are built in.

    Raises:
        Exception: Any; recorded as a problem of the plugin.
    """


@hookspec
def detcore_register_commands() -> click.Command | list[click.Command] | None:
    """Add commands to the command line.

    When: when a command is typed that is not built in, and when plugins are listed. A plugin whose
    distribution names the command in the entry-point group ``detcore.commands`` is the only one
    imported for it, and ``detcore --help`` lists the command.
    Kind: register.

    Returns:
        One `click.Command` (or group) or a list. Each has a name, which is no built-in command's.

    Raises:
        Exception: Any; recorded as a problem of the plugin.
    """


# -- observer hooks -------------------------------------------------------------------------------


@hookspec
def detcore_trial_started(trial: TrialInfo, event: EventInfo) -> None:
    """Note that a trial starts, or starts again.

    When: once per worker process, behind the opening of its context.
    Kind: observer.

    Args:
        trial: Which trial; ``trial.run_id`` counts its starts from 1, and
            ``trial.latest_checkpoint`` is what it resumes from.
        event: Its number and time.

    Raises:
        UnavailableError: The event is kept, and told again later.
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
    """Note training metrics.

    When: behind each report of training metrics: for a trial class, of each scheduling unit.
    Kind: observer.

    Args:
        trial: Which trial.
        steps_completed: Batches completed since the trial first started.
        metrics: The metrics of the unit.
        batch_metrics: The metrics of each of its batches, or None where they were not kept.
        event: Its number and time.

    Raises:
        UnavailableError: The event is kept, and told again later.
        Exception: Any other; logged once.
    """


@hookspec
def detcore_validation_metrics(
    trial: TrialInfo, steps_completed: int, metrics: Mapping[str, float], event: EventInfo
) -> None:
    """Note validation metrics.

    When: behind each report of validation metrics.
    Kind: observer.

    Args:
        trial: Which trial.
        steps_completed: Batches completed since the trial first started.
        metrics: The validation metrics.
        event: Its number and time.

    Raises:
        UnavailableError: The event is kept, and told again later.
        Exception: Any other; logged once.
    """


@hookspec
def detcore_checkpoint_saved(
    trial: TrialInfo, checkpoint: CheckpointSaved, event: EventInfo
) -> None:
    """Note a checkpoint.

    When: behind each commit; the files are complete. Where the event is told late, they may have
    been deleted since.
    Kind: observer.

    Args:
        trial: Which trial.
        checkpoint: What was saved, and where.
        event: Its number and time.

    Raises:
        UnavailableError: The event is kept, and told again later.
        Exception: Any other; logged once.
    """


@hookspec
def detcore_trial_finished(
    trial: TrialInfo, state: str, error: str | None, event: EventInfo
) -> None:
    """Note that a trial ends, or pauses.

    When: behind the last event of a worker process. Of one that was killed, its runner tells it,
    unless the trial starts again at once.
    Kind: observer.

    Args:
        trial: Which trial.
        state: ``"COMPLETED"``, ``"PAUSED"`` (to be resumed), ``"ERROR"`` or ``"INVALID_HP"``.
        error: One line that says what went wrong, or None.
        event: Its number and time.

    Raises:
        UnavailableError: The event is kept, and told again later.
        Exception: Any other; logged once.
    """
