"""The choice of the launcher that starts the trials of an experiment."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.config import ExperimentConfig
from detcore.contract.errors import DetcoreError, RunError, near_name
from detcore.launch import Launcher, LocalLauncher, SupportsCheck, find_preload
from detcore.runner._starting import count_slots
from detcore.trial import import_object

if TYPE_CHECKING:
    from detcore.hooks import PluginManager
    from detcore.runner._listener import RunSettings

__all__ = ["find_launcher", "ready_launcher"]

_logger = logging.getLogger("detcore.runner")
_LOCAL = "local"


def find_launcher(
    config: ExperimentConfig, plugins: PluginManager
) -> Callable[[], Launcher] | None:
    """Return a factory of the launcher that an experiment names; None for detcore's own.

    No launcher is made yet, so that faults are found before anything is recorded.

    Args:
        config: The experiment's configuration.
        plugins: Provide launchers.

    Raises:
        RunError: If no launcher has that name, or it does not take these settings.
    """
    given = config.launcher
    settings = {} if isinstance(given, str) else given.model_dump(mode="json", exclude={"name"})
    name = given if isinstance(given, str) else given.name
    types = plugins.launchers()
    if name not in types:
        raise RunError(
            f"launcher is {name!r}, and nothing installed provides that.\n"
            f"Launchers here: {', '.join(sorted(types))}.\n"
            "Others come with plugins: detcore plugins list."
        )
    what = f"the launcher {name!r} ({types[name].launcher})"
    try:
        made = import_object(types[name].launcher)
        model = import_object(types[name].settings) if types[name].settings else None
    except (ImportError, AttributeError) as error:
        raise RunError(f"{what} cannot be imported: {error}") from error
    faults = list(_setting_faults(settings, _known_settings(made, model)))
    if faults:
        raise RunError(
            f"{what} does not take these settings: {'; '.join(faults)}.\n"
            "Correct 'launcher' in the experiment file."
        )
    return None if name == _LOCAL else functools.partial(_make, made, settings, what)


def _known_settings(made: Callable[..., Launcher], model: Any) -> Mapping[str, bool] | None:
    """Return the settings of a launcher, and whether each is required; None: any are taken."""
    if model is not None:
        return {name: field.is_required() for name, field in model.model_fields.items()}
    parameters = inspect.signature(made).parameters.values()
    if any(each.kind is each.VAR_KEYWORD for each in parameters):
        return None
    return {each.name: each.default is each.empty for each in parameters}


def _setting_faults(settings: Mapping[str, Any], known: Mapping[str, bool] | None) -> Iterator[str]:
    """Say which settings a launcher does not have, and which it needs and was not given."""
    if known is None:
        return
    takes = f"it takes {', '.join(known)}" if known else "it takes none"
    for name in settings:
        if name not in known:
            near = near_name(name, known)
            yield f"it has no {name!r}" + (f", did you mean {near!r}?" if near else f"; {takes}")
    missing = [name for name, is_required in known.items() if is_required and name not in settings]
    if missing:
        yield f"it needs {', '.join(map(repr, missing))}"


def _make(made: Callable[..., Launcher], settings: Mapping[str, Any], what: str) -> Launcher:
    try:
        return made(**settings)
    except DetcoreError:
        raise
    except Exception as error:
        raise RunError(f"{what} cannot be made: {type(error).__name__}: {error}") from error


def choose_launcher(config: ExperimentConfig, model_dir: Path, settings: RunSettings) -> Launcher:
    """Return the launcher for the trials of an experiment; see `ready_launcher`.

    With detcore's own the trials of a search are forked from a process that has imported their
    framework, where that makes no difference to them.
    """
    make, early = find_launcher(config, settings.plugins), settings.early
    if make is not None:
        if early is not None:
            early.close()
        return make()
    preload, why_not = None, "one trial only"
    if config.searcher.name != "single":
        preload, why_not = find_preload(config.entrypoint, model_dir, settings.plugins)
    if preload is None:
        _logger.debug("every trial imports its framework by itself: %s", why_not)
    return LocalLauncher(
        preload=preload, notice=settings.listener.notice, early=early, plugins=settings.plugins
    )


@contextlib.contextmanager
def ready_launcher(
    config: ExperimentConfig, model_dir: Path, settings: RunSettings
) -> Iterator[Launcher]:
    """Open the launcher for the trials of an experiment; refuse trials that it can never start.

    Args:
        config: The experiment's configuration.
        model_dir: Folder of the user's code.
        settings: The settings of the run; the worker that was started early is used, or ended.

    Raises:
        DetcoreError: If the launcher cannot be made, or could not start a trial.
    """
    num_workers, _ = count_slots(config, max_slots=settings.max_slots)
    with contextlib.closing(choose_launcher(config, model_dir, settings)) as launcher:
        if isinstance(launcher, SupportsCheck):
            launcher.check_trial(config.model_dump(mode="json"), slots=num_workers)
        yield launcher
