"""``detcore run --master URL``: submit an experiment to a server, and follow it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detcore.errors import ConfigError

if TYPE_CHECKING:
    from detcore.cli._context import CliContext
    from detcore.remote import Detached, Session

__all__ = [
    "control_remotely",
    "control_trial_remotely",
    "go_on_remotely",
    "run_remotely",
    "tell_detached",
]


def run_remotely(
    obj: CliContext,
    master: str,
    config: Path,
    model_dir: Path | None,
    *,
    settings: tuple[str, ...],
    test_mode: bool,
    display: Any,
) -> tuple[Session, int]:
    """Submit an experiment; return the session with the server, and the experiment's id."""
    from detcore.config import notices_of_code, parse_set_flags
    from detcore.remote import HandIn, submit_folder

    try:
        text = config.read_bytes().decode("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the experiment file {config} cannot be read: {error}") from error
    folder = model_dir or config.absolute().parent
    overrides, variables = parse_set_flags(settings), obj.environment.config_overrides
    given = HandIn(
        text=text,
        name=str(config),
        overrides=overrides,
        environment=variables,
        test_mode=test_mode,
    )
    session, experiment_id = submit_folder(
        master, folder, given, obj.environment, notice=display.notice
    )
    unread = notices_of_code(
        text, name=str(config), code_dir=folder, overrides=overrides, environment=variables
    )
    for line in unread:
        display.notice(line)
    display.notice(f"experiment {experiment_id} was handed in to {session.url}")
    return session, experiment_id


def go_on_remotely(obj: CliContext, master: str, experiment_id: int) -> Session:
    """Let a server continue an experiment, unless it runs or is complete; return the session."""
    from detcore.remote import open_session, read_events

    session = open_session(master, environment=obj.environment)
    if read_events(session, experiment_id, 0)["state"] in ("PAUSED", "ERROR", "CANCELED"):
        control_remotely(master, experiment_id, "activate")
    return session


def control_remotely(master: str, experiment_id: int, action: str) -> str:
    """Have a server do something with an experiment; return the state that it has then."""
    from detcore.experimental import Determined

    with Determined(master) as client:
        experiment = client.get_experiment(experiment_id)
        getattr(experiment, action)()
        return "DELETED" if action == "delete" else str(experiment.state.value)


def control_trial_remotely(master: str, trial_id: int, action: str) -> tuple[int, bool]:
    """Have a server end a trial; return its experiment, and whether a runner looks after that."""
    from detcore.experimental import Determined

    with Determined(master) as client:
        trial = client.get_trial(trial_id)
        getattr(trial, action)()
        experiment = client.get_experiment(trial.experiment_id)
        return experiment.id, experiment.state.value == "RUNNING"


def tell_detached(detached: Detached, *, as_json: bool) -> None:
    """Print how to follow an experiment again after this command has stopped following it."""
    click.echo(str(detached), err=as_json)
    if as_json:
        click.echo(json.dumps({"experiment_id": detached.experiment_id, "state": "RUNNING"}))
