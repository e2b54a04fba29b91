"""Find the launcher and the search method that an experiment names."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from detcore.config import make_refusal_error
from detcore.contract.errors import DetcoreError, RunError, SearchError, WorkerError
from detcore.launch import Launcher, LocalLauncher, SupportsCheck
from detcore.optional_distributions import describe_missing_name
from detcore.run.trial_start import count_slots, has_no_length
from detcore.search import SearchSetup
from detcore.trial import import_object

if TYPE_CHECKING:
    from detcore.config import ExperimentConfig, LoadedConfig
    from detcore.plugins import PluginManager
    from detcore.run.run_listener import RunSettings
    from detcore.search import SearchMethod


_LOCAL = "local"
_METHODS = ("start", "validated", "exited", "progress")
_PLUGIN_HINT = "Plugins provide more. Show them with:  detcore plugins list"
_T = TypeVar("_T")


def find_launcher(
    config: ExperimentConfig, plugins: PluginManager
) -> Callable[[], Launcher] | None:
    """Return a factory of the launcher that an experiment names; None for the built-in launcher.

    No launcher is created yet, so that errors are found before the experiment is recorded.

    Args:
        config: The experiment's configuration.
        plugins: Provide launchers.

    Raises:
        RunError: If no launcher has that name, or if it cannot be imported.
    """
    launcher_config = config.launcher
    settings = (
        {}
        if isinstance(launcher_config, str)
        else launcher_config.model_dump(mode="json", exclude={"name"})
    )
    name = launcher_config if isinstance(launcher_config, str) else launcher_config.name
    registration = _get_registered("launcher", name, plugins.launchers(), kinds="launchers")
    label = f"the launcher {name!r} ({registration.launcher})"
    factory = _import_part(label, registration.launcher)
    return None if name == _LOCAL else functools.partial(_make_launcher, factory, settings, label)


def _make_launcher(
    factory: Callable[..., Launcher], settings: Mapping[str, Any], label: str
) -> Launcher:
    with _wrap_errors(label, RunError):
        return factory(**settings)


def choose_launcher(config: ExperimentConfig, model_dir: Path, settings: RunSettings) -> Launcher:
    """Return the launcher for the trials of an experiment; see `open_launcher`.

    The built-in launcher forks the trials of a search from a process that has imported their
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

    Each trial imports any other framework itself.
    """
    path = model_dir / f"{str(entrypoint).partition(':')[0].replace('.', '/')}.py"
    if not path.is_file():
        return []
    source = path.read_text(errors="replace")
    frameworks = plugins.frameworks().items()
    return [
        name for name, framework in frameworks if framework.trial_class.partition(".")[0] in source
    ]


@contextlib.contextmanager
def open_launcher(
    config: ExperimentConfig,
    model_dir: Path,
    settings: RunSettings,
    *,
    loaded: LoadedConfig | None = None,
) -> Iterator[Launcher]:
    """Open the launcher for an experiment, and check that it can start the trials.

    Args:
        config: The experiment's configuration.
        model_dir: Directory of the user's code.
        settings: The settings of the run.
        loaded: The experiment file, if errors show its lines.

    Raises:
        DetcoreError: If the launcher cannot be created, or cannot start the trials.
    """
    num_workers, _ = count_slots(config, max_slots=settings.max_slots)
    with contextlib.closing(choose_launcher(config, model_dir, settings)) as launcher:
        if isinstance(launcher, SupportsCheck):
            try:
                launcher.check_trial(config.trial_settings(), slots=num_workers)
            except WorkerError as error:
                if loaded is None or error.setting is None:
                    raise
                raise make_refusal_error(loaded, {error.setting: error}) from error
        yield launcher


def create_search_method(config: ExperimentConfig, plugins: PluginManager) -> SearchMethod:
    """Create a new search method for an experiment.

    Args:
        config: The experiment's configuration.
        plugins: Provide search methods.

    Raises:
        RunError: If no search method has that name.
        SearchError: If its class is not a search method, or cannot be created from the settings.
    """
    name, length = config.searcher.name, config.trial_settings().max_length
    types = plugins.searchers()
    target = _get_registered("searcher.name", name, types, kinds="search methods").method
    label = f"the search method {name!r} ({target})"
    factory = _import_part(label, target, SearchError)
    setup = SearchSetup(
        settings=config.searcher.model_dump(mode="json"),
        hyperparameters=config.hyperparameters,
        seed=config.reproducibility.experiment_seed,
        max_length=length.count if length is not None else int(has_no_length(config)),
    )
    needs = f"the methods {', '.join(_METHODS)}"
    returns = f".\nThe factory must accept a SearchSetup and return an object with {needs}."
    with _wrap_errors(label, SearchError, hint=returns):
        method: SearchMethod = factory(setup)
    missing_methods = [
        method_name for method_name in _METHODS if not callable(getattr(method, method_name, None))
    ]
    if missing_methods:
        raise SearchError(
            f"{label} has no {' and no '.join(missing_methods)}.\n"
            f"A search method has {needs}: see detcore.search.SearchMethod."
        )
    return method


def _get_registered(setting: str, name: str, types: Mapping[str, _T], *, kinds: str) -> _T:
    if name in types:
        return types[name]
    raise RunError(
        f"unknown {setting} {name!r}.\n"
        f"Installed {kinds}: {', '.join(sorted(types)) or 'none'}.\n"
        f"{describe_missing_name(name) or _PLUGIN_HINT}"
    )


def _import_part(label: str, target: str, error_class: type[DetcoreError] = RunError) -> Any:
    try:
        return import_object(target)
    except (ImportError, AttributeError) as error:
        raise error_class(f"{label} cannot be imported: {error}") from error


@contextlib.contextmanager
def _wrap_errors(label: str, error_class: type[DetcoreError], *, hint: str = "") -> Iterator[None]:
    try:
        yield
    except DetcoreError:
        raise
    except Exception as error:
        raise error_class(
            f"{label} cannot be created: {type(error).__name__}: {error}{hint}"
        ) from error
