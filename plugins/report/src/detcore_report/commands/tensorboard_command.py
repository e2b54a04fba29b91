"""``detcore tensorboard``: TensorBoard on the event files of trials."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detcore.cli import EXPERIMENT_ID, master_option, open_client, open_records
from detcore.errors import NotFoundError, RunError, UnavailableError

if TYPE_CHECKING:
    from types import FrameType

    from detcore.cli import CliContext
    from detcore.client import Determined
    from detcore.records import Database, TrialRecord


# How often the event files of a server are brought up to date.
_FETCH_S = 5.0
_EXAMPLES = """
\b
Examples:
  detcore tensorboard 3
  detcore tensorboard 3 5 -- --port 6007 --bind_all
  detcore tensorboard 3 --master http://host:8080     copies of the server's files
"""


@click.command(
    epilog=_EXAMPLES,
    context_settings={"ignore_unknown_options": True},
)
@click.argument(
    "arguments",
    nargs=-1,
    shell_complete=EXPERIMENT_ID.shell_complete,
    metavar="EXPERIMENT_ID... [--] [TENSORBOARD_OPTIONS]",
)
@master_option
def tensorboard(obj: CliContext, arguments: tuple[str, ...]) -> None:
    """Start TensorBoard on the event files of the trials of experiments.

    Runs are called experiment-ID/TRIAL/...; trials that start later appear by themselves. The
    arguments after the ids are passed on to TensorBoard. The event files of a server are copied to
    a temporary folder, and brought up to date while TensorBoard runs.
    """
    ids, rest = _split(arguments)
    if not ids:
        raise click.UsageError("give the id of an experiment")
    if obj.master is not None:
        raise SystemExit(_show_copies(obj, ids, rest))
    folders: dict[str, Path] = {}
    with open_records(obj) as database:
        for experiment_id in ids:
            record = database.get_experiment(experiment_id)
            trials = database.list_trials(experiment_id)
            found = _folders(experiment_id, trials)
            if record.state.value != "RUNNING" and not _has_events(found.values()):
                raise NotFoundError(
                    f"the trials of experiment {experiment_id} wrote no event files.\n"
                    f"Looked for *tfevents* in: {', '.join(map(str, found.values())) or 'none'}."
                )
            folders.update(found)
    _require_tensorboard()
    where = _link(obj.environment.home / "tensorboard" / "-".join(map(str, ids)), folders)
    click.echo(f"event files: {where}", err=True)
    sys.stdout.flush()
    os.execv(sys.executable, _command(where, rest))


def _command(where: Path, rest: list[str]) -> list[str]:
    return [sys.executable, "-m", "tensorboard.main", "--logdir", str(where), *rest]


def _show_copies(obj: CliContext, ids: list[int], rest: list[str]) -> int:
    """Run TensorBoard on copies of a server's event files, and return its exit code."""
    _require_tensorboard()
    with (
        tempfile.TemporaryDirectory(prefix="detcore-tensorboard-") as name,
        open_records(obj) as database,
        open_client(obj) as client,
    ):
        where = Path(name)
        done: set[tuple[int, int]] = set()
        for experiment_id in ids:
            _fetch(database, client, experiment_id, where, done)
            _require_copies(database, experiment_id, where)
        click.echo(f"copies of event files: {where}", err=True)
        signal.signal(signal.SIGTERM, _end)  # which would leave TensorBoard and the folder behind
        with subprocess.Popen(_command(where, rest)) as running:
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        return running.wait(_FETCH_S)
                    with contextlib.suppress(UnavailableError):  # the next pass asks again
                        for experiment_id in ids:
                            _fetch(database, client, experiment_id, where, done)
            finally:
                running.terminate()


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _fetch(
    database: Database,
    client: Determined,
    experiment_id: int,
    where: Path,
    done: set[tuple[int, int]],
) -> None:
    """Copy the event files that the trials of an experiment have written since the last pass.

    Args:
        done: Trials and runs that have ended and are copied; those of this pass are added.
    """
    for trial in database.list_trials(experiment_id):
        if (trial.id, trial.run_id) in done:
            continue
        with contextlib.suppress(NotFoundError):  # it has written none yet
            folder = where / f"experiment-{experiment_id}" / str(trial.id)
            client.get_trial(trial.id).download_event_files(folder)
        if trial.state.value != "RUNNING":
            done.add((trial.id, trial.run_id))


def _require_copies(database: Database, experiment_id: int, where: Path) -> None:
    is_running = database.get_experiment(experiment_id).state.value == "RUNNING"
    if not is_running and not (where / f"experiment-{experiment_id}").exists():
        raise NotFoundError(
            f"the server has no event files of experiment {experiment_id}.\n"
            "Its trials wrote none, or ran on other machines and only report to the server.\n"
            "Where they ran, without --master and DETCORE_MASTER: "
            f"detcore tensorboard {experiment_id}"
        )


def _split(arguments: Iterable[str]) -> tuple[list[int], list[str]]:
    """Return the ids that come first, and TensorBoard's arguments."""
    ids: list[int] = []
    rest = list(arguments)
    while rest and not rest[0].startswith("-"):
        text = rest.pop(0)
        if not text.isdecimal():
            raise click.UsageError(f"{text!r} is no id of an experiment, such as 3")
        ids.append(int(text))
    return list(dict.fromkeys(ids)), rest[1:] if rest[:1] == ["--"] else rest


def _folders(experiment_id: int, trials: Iterable[TrialRecord]) -> dict[str, Path]:
    """Return what to link, by names: the one folder that all trials are in, or each trial's."""
    own = {trial.id: Path(trial.trial_dir) for trial in trials if trial.trial_dir is not None}
    parents = {folder.parent for folder in own.values()}
    name = f"experiment-{experiment_id}"
    if len(parents) == 1 and parents.copy().pop().parts[-2:] == (str(experiment_id), "trials"):
        return {name: parents.pop()}
    return {f"{name}-trial-{trial_id}": folder for trial_id, folder in own.items()}


def _has_events(folders: Iterable[Path]) -> bool:
    return any(next(folder.rglob("*tfevents*"), None) is not None for folder in folders)


def _require_tensorboard() -> None:
    import importlib.util

    if importlib.util.find_spec("tensorboard") is None:
        raise RunError(
            f"TensorBoard is not installed in this environment ({sys.prefix}).\n"
            "Install it: pip install tensorboard"
        )


def _link(folder: Path, targets: dict[str, Path]) -> Path:
    """Make a folder of links, because TensorBoard takes one folder; links of before are removed."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in folder.iterdir():
        if entry.is_symlink() and entry.name not in targets:
            entry.unlink()
    for name, target in targets.items():
        temporary = folder / f".{name}.{os.getpid()}"
        temporary.symlink_to(target)
        with contextlib.suppress(IsADirectoryError):
            temporary.replace(folder / name)
            continue
        temporary.unlink()
    return folder
