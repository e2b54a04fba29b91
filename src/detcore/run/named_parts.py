"""Find the parts that an experiment names: launcher, search method, action for failed trials."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from detcore.contract.errors import DetcoreError, RunError, SearchError
from detcore.launch import Launcher, LocalLauncher, SupportsCheck
from detcore.optional_distributions import describe_missing_name
from detcore.run.trial_start import count_slots, has_no_length
from detcore.search import SearchSetup
from detcore.trial import import_object

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig
    from detcore.plugins import PluginManager
    from detcore.run.run_listener import RunSettings
    from detcore.search import SearchMethod


_LOCAL = "local"
_METHODS = ("start", "validated", "exited", "progress")
_ELSEWHERE = "Others come with plugins: detcore plugins list"
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
        RunError: If no launcher has that name, or it cannot be imported.
    """
    given = config.launcher
    settings = {} if isinstance(given, str) else given.model_dump(mode="json", exclude={"name"})
    name = given if isinstance(given, str) else given.name
    found = _registered("launcher", name, plugins.launchers(), kinds="Launchers")
    what = f"the launcher {name!r} ({found.launcher})"
    made = _imported(what, found.launcher)
    return None if name == _LOCAL else functools.partial(_make_launcher, made, settings, what)


def _make_launcher(
    made: Callable[..., Launcher], settings: Mapping[str, Any], what: str
) -> Launcher:
    with _making(what, RunError):
        return made(**settings)


def choose_launcher(config: ExperimentConfig, model_dir: Path, settings: RunSettings) -> Launcher:
    """Return the launcher for the trials of an experiment; see `open_launcher`.

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
def open_launcher(
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
            launcher.check_trial(config.trial_settings(), slots=num_workers)
        yield launcher


def create_search_method(config: ExperimentConfig, plugins: PluginManager) -> SearchMethod:
    """Make the search method of an experiment, new.

    Args:
        config: The experiment's configuration.
        plugins: Provide search methods.

    Raises:
        RunError: If no search method has that name.
        SearchError: If its class is no search method, or cannot be made from these settings.
    """
    name, length = config.searcher.name, config.trial_settings().max_length
    types = plugins.searchers()
    target = _registered("searcher.name", name, types, kinds="Search methods").method
    what = f"the search method {name!r} ({target})"
    made = _imported(what, target, SearchError)
    setup = SearchSetup(
        settings=config.searcher.model_dump(mode="json"),
        hyperparameters=config.hyperparameters,
        seed=config.reproducibility.experiment_seed,
        max_length=length.count if length is not None else int(has_no_length(config)),
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


def _registered(setting: str, name: str, types: Mapping[str, _T], *, kinds: str) -> _T:
    if name in types:
        return types[name]
    raise RunError(
        f"{setting} is {name!r}, and nothing installed provides that.\n"
        f"{kinds} here: {', '.join(sorted(types)) or 'none'}.\n"
        f"{describe_missing_name(name) or _ELSEWHERE}"
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
