"""Find the parts that an experiment names: launcher, search method, action for failed trials."""

from __future__ import annotations

import contextlib
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from detcore._distributions import describe_missing
from detcore.contract.errors import DetcoreError, RunError, SearchError, near_name
from detcore.launch import Launcher, LocalLauncher, SupportsCheck
from detcore.runner._starting import count_slots
from detcore.search import SearchSetup
from detcore.trial import import_object

if TYPE_CHECKING:
    from pydantic import BaseModel

    from detcore.config import ExperimentConfig
    from detcore.hooks import PluginManager, TrialFailure
    from detcore.runner._listener import RunSettings
    from detcore.search import SearchMethod


_LOCAL = "local"
_DISTRIBUTIONS = {"bundle": "detcore-replay"}
_METHODS = ("start", "validated", "exited", "progress")
_ELSEWHERE = "others come with plugins: detcore plugins list"
# Accepted in experiment files, for they are documented; nothing here carries them out.
_NOT_HERE = {
    "custom": "register the class by the hook detcore_register_searcher, and use its name",
    "pbt": "adaptive_asha and optuna also spend most of the time on the best trials",
}
_T = TypeVar("_T")


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
    found = _registered("launcher", name, plugins.launchers(), kinds="Launchers")
    what = f"the launcher {name!r} ({found.launcher})"
    made = _imported(what, found.launcher)
    model = _imported(what, found.settings) if found.settings else None
    faults = list(_setting_faults(settings, _known_settings(made, model)))
    if faults:
        raise RunError(
            f"{what} does not take these settings: {'; '.join(faults)}.\n"
            "Correct 'launcher' in the experiment file."
        )
    return None if name == _LOCAL else functools.partial(_make_launcher, made, settings, what)


def _known_settings(
    made: Callable[..., Launcher], model: type[BaseModel] | None
) -> Mapping[str, bool] | None:
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


def _make_launcher(
    made: Callable[..., Launcher], settings: Mapping[str, Any], what: str
) -> Launcher:
    with _making(what, RunError):
        return made(**settings)


def choose_launcher(config: ExperimentConfig, model_dir: Path, settings: RunSettings) -> Launcher:
    """Return the launcher for the trials of an experiment; see `ready_launcher`.

    With detcore's own the trials of a search are forked from a process that has imported their
    framework.
    """
    make = find_launcher(config, settings.plugins)
    if make is not None:
        return make()
    names: list[str] = []
    if config.searcher.name != "single" and settings.environment.forks_trials:
        names = _find_named_frameworks(config.entrypoint, model_dir, settings.plugins)
    return LocalLauncher(
        fork_frameworks=names or None, notice=settings.listener.notice, plugins=settings.plugins
    )


def _find_named_frameworks(
    entrypoint: object, model_dir: Path, plugins: PluginManager
) -> list[str]:
    """Return the frameworks whose plugin is named in the file of the trial class.

    A framework that is not found there is imported by each trial.
    """
    path = model_dir / f"{str(entrypoint).partition(':')[0].replace('.', '/')}.py"
    if not path.is_file():
        return []
    source = path.read_text(errors="replace")
    frameworks = plugins.frameworks().items()
    return [name for name, each in frameworks if each.trial_class.partition(".")[0] in source]


@contextlib.contextmanager
def ready_launcher(
    config: ExperimentConfig, model_dir: Path, settings: RunSettings
) -> Iterator[Launcher]:
    """Open the launcher for the trials of an experiment; refuse trials that it can never start.

    Args:
        config: The experiment's configuration.
        model_dir: Folder of the user's code.
        settings: The settings of the run.

    Raises:
        DetcoreError: If the launcher cannot be made, or could not start a trial.
    """
    num_workers, _ = count_slots(config, max_slots=settings.max_slots)
    with contextlib.closing(choose_launcher(config, model_dir, settings)) as launcher:
        if isinstance(launcher, SupportsCheck):
            launcher.check_trial(config.model_dump(mode="json"), slots=num_workers)
        yield launcher


def find_failure_action(
    name: str | None, plugins: PluginManager
) -> Callable[[TrialFailure], str | None] | None:
    """Return the action for trials that fail; None if the experiment names no action.

    Args:
        name: ``on_failure`` of the experiment file.
        plugins: Provide actions.

    Raises:
        RunError: If no installed plugin has the action, or it cannot be imported.
    """
    if name is None:
        return None
    actions = plugins.failure_actions()
    if name not in actions and name in _DISTRIBUTIONS:
        raise RunError(describe_missing(_DISTRIBUTIONS[name], needed_by=f"on_failure: {name}"))
    function = _registered("on_failure", name, actions, kinds="Actions").function
    action: Callable[[TrialFailure], str | None] = _imported(
        f"on_failure: {name} ({function})", function
    )
    return action


def make_method(config: ExperimentConfig, plugins: PluginManager) -> SearchMethod:
    """Make the search method of an experiment, new.

    Args:
        config: The experiment's configuration.
        plugins: Provide search methods.

    Raises:
        RunError: If no search method has that name.
        SearchError: If its class is no search method, or cannot be made from these settings.
    """
    name, length = config.searcher.name, config.trial_settings().max_length
    hint = _NOT_HERE.get(name, _ELSEWHERE)
    types = plugins.searchers()
    target = _registered("searcher.name", name, types, kinds="Search methods", hint=hint).method
    what = f"the search method {name!r} ({target})"
    made = _imported(what, target, SearchError)
    setup = SearchSetup(
        settings=config.searcher.model_dump(mode="json"),
        hyperparameters=config.hyperparameters,
        seed=config.reproducibility.experiment_seed,
        max_length=length.count if length is not None else 0,
    )
    needs = f"the methods {', '.join(_METHODS)}"
    returns = f".\nIt is called with a SearchSetup, and returns an object with {needs}."
    with _making(what, SearchError, hint=returns):
        method: SearchMethod = made(setup)
    missing = [each for each in _METHODS if not callable(getattr(method, each, None))]
    if missing:
        raise SearchError(
            f"{what} has no {' and no '.join(missing)}.\n"
            f"A search method has {needs}: see detcore.search.SearchMethod."
        )
    return method


def _registered(
    setting: str, name: str, types: Mapping[str, _T], *, kinds: str, hint: str = _ELSEWHERE
) -> _T:
    if name in types:
        return types[name]
    raise RunError(
        f"{setting} is {name!r}, and nothing installed provides that.\n"
        f"{kinds} here: {', '.join(sorted(types)) or 'none'}.\n{hint[0].upper()}{hint[1:]}."
    )


def _imported(what: str, target: str, error_class: type[DetcoreError] = RunError) -> Any:
    try:
        return import_object(target)
    except (ImportError, AttributeError) as error:
        raise error_class(f"{what} cannot be imported: {error}") from error


@contextlib.contextmanager
def _making(what: str, error_class: type[DetcoreError], *, hint: str = "") -> Iterator[None]:
    try:
        yield
    except DetcoreError:
        raise
    except Exception as error:
        raise error_class(
            f"{what} cannot be made: {type(error).__name__}: {error}{hint}"
        ) from error
