"""`create`, which starts an experiment from Python."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.client.arguments import code_folder
from detcore.contract.errors import ConfigError, InvalidExperimentError, RunError, describe
from detcore.environment import Environment, read_environment
from detcore.optional_distributions import import_distribution
from detcore.trial import ImportEnded, Trial, is_importing_trial

if TYPE_CHECKING:
    from detcore.client.experiment_reference import ExperimentReference

_EXIT_TEMPFAIL = 75  # sysexits' EX_TEMPFAIL: run again later


def create(
    trial_def: type[Trial],
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    local: bool = False,
    test: bool = False,
    context_dir: str | os.PathLike[str] = "",
    command: Sequence[str] | None = None,
    master_url: str | None = None,
) -> ExperimentReference | None:
    """Run an experiment with a trial class, and wait until it ends.

    With ``local=True``, it runs as with ``detcore run``. Otherwise a server (``detcore serve``)
    runs it. `context_dir` is uploaded, except for files that its ``.detignore`` excludes, and the
    output and reports of the trials are printed here. Ctrl-C only stops following the experiment.

    The processes of the trials import the class; see docs/client.md for details. If the
    script runs as a trial, the class is trained in this process with the trial's configuration.

    Args:
        trial_def: The trial class.
        config: The experiment's configuration, as a dictionary or the path of an experiment file.
            Its ``entrypoint`` is ignored. Default: one trial of 100 batches of 32 records.
        local: Whether to run the experiment on this machine, including searches.
        test: Whether to run only one batch, one validation and one checkpoint.
        context_dir: Directory of the code, and working directory of the trials. Required for a
            server. The default for local runs is the working directory.
        command: The command that the server runs: a script in `context_dir` and its arguments;
            default: this script with its arguments.
        master_url: Address of the server; default: ``DETCORE_MASTER`` or ``DET_MASTER``.

    Returns:
        The completed experiment. None in a process that trains a trial of the experiment.

    Raises:
        ConfigError: If an argument or the configuration has mistakes, no server is known, or the
            directory cannot be uploaded.
        InvalidExperimentError: If other processes cannot import the class.
        RunError: If the experiment failed, was canceled or, in an interactive session, interrupted.
        SystemExit: With code 75 if a script was interrupted and the trials have saved checkpoints.
            With code 130 if the script stopped following a server.
    """
    if is_importing_trial():
        raise ImportEnded(sys.modules.get(getattr(trial_def, "__module__", "")))
    _check_arguments(trial_def, local=local, test=test, command=command)
    environment = read_environment()
    if environment.trial_info is not None:
        return _train_here(trial_def, environment)
    if local:
        return _run_here(trial_def, config, test, context_dir, environment)
    from detcore.client.remote_experiment import run_remotely

    return run_remotely(
        trial_def,
        config,
        test=test,
        context_dir=context_dir,
        command=command,
        master_url=master_url,
        environment=environment,
    )


def _check_arguments(trial_def: object, *, local: object, test: object, command: object) -> None:
    if not (isinstance(trial_def, type) and issubclass(trial_def, Trial)):
        raise InvalidExperimentError(
            f"trial_def is {describe(trial_def)}; expected a trial class.\n"
            "A trial class is a subclass of a class such as detcore_keras.KerasTrial. Pass the "
            "class, not an instance."
        )
    for name, value in (("local", local), ("test", test)):
        if not isinstance(value, bool):
            raise ConfigError(f"{name} is {describe(value)}; expected True or False")
    if command is not None and (
        isinstance(command, str)
        or not isinstance(command, Sequence)
        or not all(isinstance(word, str) for word in command)
    ):
        raise ConfigError(f"command is {describe(command)}; expected a list of strings or None")


def _run_here(
    trial_def: type[Trial],
    config: Any,
    test: bool,
    context_dir: str | os.PathLike[str],
    environment: Environment,
) -> ExperimentReference:
    if threading.current_thread() is not threading.main_thread():
        raise RunError(
            "create() was called in a thread, where it cannot handle Ctrl-C and SIGTERM.\n"
            "Call it in the main thread, or run the experiment with: detcore run"
        )
    from detcore.client.arguments import load_trial_config
    from detcore.client.class_location import find_class
    from detcore.client.determined import Determined
    from detcore.client.embedded_transport import EmbeddedTransport
    from detcore.client.printing_listener import PrintingListener, raise_unless_complete
    from detcore.plugins import PluginManager
    from detcore.run import RunSettings, start_experiment
    from detcore.trial import find_framework

    folder = code_folder(context_dir or Path.cwd())
    listener = PrintingListener()
    plugins = PluginManager(environment)
    framework = find_framework(trial_def, plugins.frameworks())
    place = find_class(trial_def, folder)
    loaded = load_trial_config(
        config,
        trial_class=trial_def,
        framework=framework,
        plugins=plugins,
        environment=environment.config_overrides,
        entrypoint=place.entrypoint,
    )
    for notice in loaded.notices:
        listener.notice(notice)
    if place.written is not None:
        listener.notice(f"the trials import {trial_def.__name__} from {place.written}")
    settings = RunSettings(environment=environment, plugins=plugins, listener=listener)
    result = start_experiment(loaded, folder, settings, test_mode=test)
    raise_unless_complete(result)
    # A local run is recorded on this machine, even if the environment names a master.
    client = Determined(transport=EmbeddedTransport(environment))
    return client.get_experiment(result.experiment_id)


def create_trial_instance(
    trial_def: type[Trial],
    checkpoint_dir: str | os.PathLike[str],
    config: Mapping[str, Any] | str | os.PathLike[str] | None = None,
    hparams: Mapping[str, Any] | None = None,
) -> Trial:
    """Create a trial in this process, to call its methods and inspect their results.

    See `detcore_replay.create_trial_instance` for the arguments.

    Raises:
        MissingDistributionError: If detcore-replay is not installed.
    """
    replay = import_distribution("detcore_replay", needed_by="create_trial_instance")
    trial: Trial = replay.create_trial_instance(trial_def, checkpoint_dir, config, hparams)
    return trial


def _train_here(trial_def: type[Trial], environment: Environment) -> ExperimentReference | None:
    """Train the class if this script runs as a trial. No-op in a trial of a trial class."""
    from detcore import core
    from detcore.trial import run_trial

    info = core.read_trial_info(environment)
    if info.settings.is_trial_class:
        return None  # another module of the trial, or a process that the trial started
    alone = environment.num_workers == 1
    workers = core.DistributedContext() if alone else core.DistributedContext.from_env()
    with core.init(distributed=workers) as context:
        outcome = run_trial(context, trial_def)
        if outcome.is_preempted:
            raise SystemExit(_EXIT_TEMPFAIL)
    return None
