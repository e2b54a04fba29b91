"""``create(local=False)``, which runs an experiment on a server."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detcore.client.arguments import code_folder, fill_config
from detcore.client.class_location import find_class, find_main_script, is_interactive
from detcore.client.printing_listener import PrintingListener, raise_unless_complete
from detcore.contract.errors import ConfigError, InvalidExperimentError, RunError, describe

if TYPE_CHECKING:
    from detcore.client.experiment_reference import ExperimentReference
    from detcore.environment import Environment
    from detcore.trial import Trial


_EXIT_DETACHED = 130
_NOTEBOOK = ".ipynb"


def run_remotely(
    trial_def: type[Trial],
    config: Any,
    *,
    test: bool,
    context_dir: str | os.PathLike[str],
    command: Sequence[str] | None,
    master_url: str | None,
    environment: Environment,
) -> ExperimentReference:
    """Submit an experiment to a server, and follow it; see `detcore.client.create`."""
    from detcore.client import http
    from detcore.client.determined import Determined
    from detcore.config import format_mapping
    from detcore.plugins import PluginManager
    from detcore.trial import find_framework

    folder = _resolve_context_dir(context_dir)
    master = master_url or environment.master
    if not master:
        raise ConfigError(
            "create(local=False) needs the address of a server.\n"
            "Pass master_url='http://host:8080', or set DETCORE_MASTER or DET_MASTER. To run the "
            "experiment on this machine, pass local=True."
        )
    listener = PrintingListener()
    framework = find_framework(trial_def, PluginManager(environment).frameworks())
    entrypoint = _make_entrypoint(trial_def, command, folder, listener)
    variables = environment.config_overrides
    if isinstance(config, str | os.PathLike):
        # A JSON string is also a YAML string.
        value = json.dumps(entrypoint) if isinstance(entrypoint, str) else entrypoint
        submission = http.Submission.from_file(
            Path(config), overrides={"entrypoint": value}, environment=variables, test_mode=test
        )
    else:
        filled = fill_config(
            config, trial_class=trial_def, framework=framework, entrypoint=entrypoint
        )
        submission = http.Submission(
            text=format_mapping(filled),
            name="config",
            overrides={},
            environment=variables,
            test_mode=test,
        )
    session, experiment_id = http.submit_experiment(
        master, submission, folder, environment=environment, notice=listener.notice
    )
    try:
        result = http.follow_experiment(session, experiment_id, listener)
    except http.DetachedError as detached:
        if is_interactive():
            raise RunError(str(detached)) from None
        print(detached, flush=True)
        raise SystemExit(_EXIT_DETACHED) from None
    raise_unless_complete(result, at=f" --master {session.url}", was="paused")
    return Determined(master_url).get_experiment(experiment_id)


def _resolve_context_dir(context_dir: str | os.PathLike[str]) -> Path:
    if not os.fspath(context_dir):
        raise InvalidExperimentError(
            "create(local=False) needs context_dir, the code directory that is uploaded to the "
            "server.\n"
            "Pass context_dir='.' for the working directory. To run the experiment on this "
            "machine, pass local=True."
        )
    return code_folder(context_dir)


def _make_entrypoint(
    trial_def: type[Trial],
    command: Sequence[str] | None,
    folder: Path,
    listener: PrintingListener,
) -> str | list[str]:
    """Return the entrypoint for the trials on the server."""
    if command is not None and not (command and command[0].endswith(_NOTEBOOK)):
        return ["python3", *_check_command(command, folder)]
    script = find_main_script(trial_def)
    if script is not None:
        if not script.is_relative_to(folder):
            raise InvalidExperimentError(
                f"the script {script} is not in the uploaded directory {folder}.\n"
                f"Pass context_dir={str(script.parent)!r}."
            )
        return ["python3", script.relative_to(folder).as_posix(), *sys.argv[1:]]
    place = find_class(trial_def, folder)
    if place.written is not None:
        listener.notice(f"the trials import {trial_def.__name__} from {place.written}")
    return place.entrypoint


def _check_command(command: Sequence[str], folder: Path) -> list[str]:
    if not command:
        raise ConfigError("command is []; expected a script in context_dir and its arguments")
    script = Path(command[0])
    inside = script.relative_to(folder) if script.is_relative_to(folder) else script
    if inside.is_absolute() or ".." in inside.parts or not (folder / inside).is_file():
        raise ConfigError(
            f"command is {describe(list(command))}, but the uploaded directory {folder} has no "
            f"script {command[0]!r}.\n"
            "Start the command with the script that calls create(), relative to context_dir: "
            "command=['train.py', '--flag']"
        )
    return [inside.as_posix(), *command[1:]]
