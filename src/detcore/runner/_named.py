"""The objects that an experiment names: launcher, search method, and action on failure."""

from __future__ import annotations

import contextlib
import functools
import inspect
import logging
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore._distributions import describe_missing
from detcore.errors import DetcoreError, RunError, SearchError, near_name
from detcore.launch import Launcher, LocalLauncher, SupportsCheck, find_preload
from detcore.runner._starting import count_slots
from detcore.search import SearchMethod, SearchSetup
from detcore.trial import import_object

if TYPE_CHECKING:
    from detcore.hooks import PluginManager, TrialFailure
    from detcore.runner._listener import RunListener, RunSettings

__all__ = [
    "act_on_failure",
    "find_failure_action",
    "find_launcher",
    "make_method",
    "ready_launcher",
]

_logger = logging.getLogger("detcore.runner")
_LOCAL = "local"
_DISTRIBUTIONS = {"bundle": "detcore-replay"}
_METHODS = ("start", "validated", "exited", "progress")
# Accepted in experiment files, for they are documented; nothing here carries them out.
_NOT_HERE = {
    "custom": "register the class by the hook detcore_register_searcher, and use its name",
    "pbt": "adaptive_asha and optuna also spend most of the time on the best trials",
}


def _import(target: str, what: str, error: type[DetcoreError]) -> Any:
    try:
        return import_object(target)
    except (ImportError, AttributeError) as reason:
        raise error(f"{what} cannot be imported: {reason}") from reason


def find_launcher(
    plain: Mapping[str, Any], plugins: PluginManager
) -> Callable[[], Launcher] | None:
    """Return a factory of the launcher that an experiment names; None for detcore's own.

    No launcher is made yet, so that faults are found before anything is recorded.

    Args:
        plain: The experiment's configuration.
        plugins: Provide launchers.

    Raises:
        RunError: If no launcher has that name, or it does not take these settings.
    """
    given = plain.get("launcher", _LOCAL)
    settings = {} if isinstance(given, str) else dict(given)
    name = settings.pop("name", given)
    types = plugins.launchers()
    if name not in types:
        raise RunError(
            f"launcher is {name!r}, and nothing installed provides that.\n"
            f"Launchers here: {', '.join(sorted(types))}.\n"
            "Others come with plugins: detcore plugins list."
        )
    what = f"the launcher {name!r} ({types[name].launcher})"
    made = _import(types[name].launcher, what, RunError)
    model = _import(types[name].settings, what, RunError) if types[name].settings else None
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


def choose_launcher(plain: Mapping[str, Any], model_dir: Path, settings: RunSettings) -> Launcher:
    """Return the launcher for the trials of an experiment; see `ready_launcher`.

    With detcore's own the trials of a search are forked from a process that has imported their
    framework, where that makes no difference to them.
    """
    make, early = find_launcher(plain, settings.plugins), settings.early
    if make is not None:
        if early is not None:
            early.close()
        return make()
    preload, why_not = None, "one trial only"
    if plain["searcher"]["name"] != "single":
        preload, why_not = find_preload(plain["entrypoint"], model_dir, settings.plugins)
    if preload is None:
        _logger.debug("every trial imports its framework by itself: %s", why_not)
    return LocalLauncher(
        preload=preload, notice=settings.listener.notice, early=early, plugins=settings.plugins
    )


@contextlib.contextmanager
def ready_launcher(
    plain: Mapping[str, Any], model_dir: Path, settings: RunSettings
) -> Iterator[Launcher]:
    """Open the launcher for the trials of an experiment; refuse trials that it can never start.

    Args:
        plain: The experiment's configuration.
        model_dir: Folder of the user's code.
        settings: The settings of the run; the worker that was started early is used, or ended.

    Raises:
        DetcoreError: If the launcher cannot be made, or could not start a trial.
    """
    num_workers, _ = count_slots(plain, max_slots=settings.max_slots)
    with contextlib.closing(choose_launcher(plain, model_dir, settings)) as launcher:
        if isinstance(launcher, SupportsCheck):
            launcher.check_trial(plain, slots=num_workers)
        yield launcher


def make_method(plain: Mapping[str, Any], plugins: PluginManager) -> SearchMethod:
    """Make the search method of an experiment, new.

    Args:
        plain: The experiment's configuration.
        plugins: Provide search methods.

    Raises:
        RunError: If no search method has that name.
        SearchError: If its class is no search method, or cannot be made from these settings.
    """
    settings = plain["searcher"]
    name = settings["name"]
    types = plugins.searchers()
    if name not in types:
        hint = _NOT_HERE.get(name, "other search methods come with plugins: detcore plugins list")
        raise RunError(
            f"searcher.name is {name!r}, and nothing installed carries that out.\n"
            f"Search methods here: {', '.join(sorted(types))}.\n{hint[0].upper()}{hint[1:]}."
        )
    target = types[name].method
    what = f"the search method {name!r} ({target})"
    made = _import(target, what, SearchError)
    setup = SearchSetup(
        settings=settings,
        hyperparameters=plain["hyperparameters"],
        seed=plain["reproducibility"]["experiment_seed"],
        max_length=_count(settings.get("max_length")),
    )
    try:
        method: SearchMethod = made(setup)
    except DetcoreError:
        raise
    except Exception as error:
        raise SearchError(
            f"{what} cannot be made: {type(error).__name__}: {error}.\n"
            "It is called with a SearchSetup, and returns an object with the methods "
            f"{', '.join(_METHODS)}."
        ) from error
    missing = [each for each in _METHODS if not callable(getattr(method, each, None))]
    if missing:
        raise SearchError(
            f"{what} has no {' and no '.join(missing)}.\n"
            f"A search method has the methods {', '.join(_METHODS)}: "
            "see detcore.search.SearchMethod."
        )
    return method


def _count(length: object) -> int:
    """Return a length without its unit; 0 if no length is given."""
    if isinstance(length, Mapping):
        (length,) = length.values()
    return length if isinstance(length, int) else 0


def find_failure_action(
    plain: Mapping[str, Any], plugins: PluginManager
) -> Callable[[TrialFailure], str | None] | None:
    """Return the action for trials that fail; None if the experiment names no action.

    Args:
        plain: The experiment's configuration.
        plugins: Provide actions.

    Raises:
        RunError: If no installed plugin has the action, or it cannot be imported.
    """
    name = plain.get("on_failure")
    if name is None:
        return None
    actions = plugins.failure_actions()
    if name not in actions:
        if name in _DISTRIBUTIONS:
            raise RunError(describe_missing(_DISTRIBUTIONS[name], needed_by=f"on_failure: {name}"))
        raise RunError(
            f"on_failure is {name!r}, and no installed plugin has that action.\n"
            f"Actions here: {', '.join(sorted(actions)) or 'none'}.\n"
            "Others come with plugins: detcore plugins list."
        )
    function = actions[name].function
    action: Callable[[TrialFailure], str | None] = _import(
        function, f"on_failure: {name} ({function})", RunError
    )
    return action


def act_on_failure(failure: TrialFailure, plugins: PluginManager, listener: RunListener) -> None:
    """Call the action that the experiment of a failed trial names; show its text or its error."""
    name = failure.trial.config.get("on_failure")
    try:
        action = find_failure_action(failure.trial.config, plugins)
        text = action(failure) if action is not None else None
    except Exception as error:  # noqa: BLE001  (a plugin's, which must not end the other trials)
        kind = "" if isinstance(error, DetcoreError) else f"{type(error).__name__}: "
        text = f"on_failure: {name} failed: {kind}{error}"
    if text:
        listener.notice(f"trial {failure.trial.trial_id}: {text}")
