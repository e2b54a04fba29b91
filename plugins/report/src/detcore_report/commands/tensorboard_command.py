"""``detcore tensorboard``: TensorBoard on the event files of trials."""

from __future__ import annotations

import contextlib
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
    from detcore.records import Database


# Interval of checks for new trials and for a server's event files.
_REFRESH_S = 5.0
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
    """Start TensorBoard on the event files of experiments' trials.

    Runs are named experiment-ID/TRIAL/..., and new trials appear automatically. Arguments after the
    ids are passed to TensorBoard. It reads a temporary directory with links to the event files, or
    with copies of a server's event files, which is updated while TensorBoard runs.
    """
    ids, options = _split_arguments(arguments)
    if not ids:
        raise click.UsageError("pass the id of an experiment")
    for number in (signal.SIGTERM, signal.SIGHUP):  # they would leave TensorBoard and the directory
        signal.signal(number, _exit_on_signal)
    with (
        tempfile.TemporaryDirectory(prefix="detcore-tensorboard-") as name,
        open_records(obj) as database,
        open_client(obj) if obj.master is not None else contextlib.nullcontext() as client,
    ):
        logdir = Path(name)
        finished: set[tuple[int, int]] = set()
        for experiment_id in ids:
            _collect_event_files(database, client, experiment_id, logdir, finished)
            _require_events(database, experiment_id, logdir, is_here=client is None)
        _require_tensorboard()
        click.echo(f"event files: {logdir}", err=True)
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(logdir), *options]
        with subprocess.Popen(command) as process:
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        raise SystemExit(process.wait(_REFRESH_S))
                    with contextlib.suppress(UnavailableError):  # the next pass tries again
                        for experiment_id in ids:
                            _collect_event_files(database, client, experiment_id, logdir, finished)
            finally:
                process.terminate()


def _exit_on_signal(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _collect_event_files(
    database: Database,
    client: Determined | None,
    experiment_id: int,
    where: Path,
    done: set[tuple[int, int]],
) -> None:
    """Link or copy the event files of an experiment's trials.

    Args:
        client: Client of the server to copy files from; None if the files are local.
        done: Trials and runs that need no further pass; this pass adds to them.
    """
    for trial in database.list_trials(experiment_id):
        folder = where / f"experiment-{experiment_id}" / str(trial.id)
        if (trial.id, trial.run_id) in done:
            continue
        if client is not None:
            with contextlib.suppress(NotFoundError):  # it has not written event files yet
                client.get_trial(trial.id).download_event_files(folder)
        elif trial.trial_dir is not None and not folder.is_symlink():
            folder.parent.mkdir(exist_ok=True)
            folder.symlink_to(trial.trial_dir)
        if trial.state.value != "RUNNING":
            done.add((trial.id, trial.run_id))


def _require_events(database: Database, experiment_id: int, where: Path, *, is_here: bool) -> None:
    folders = [*where.glob(f"experiment-{experiment_id}/*/")]
    is_running = database.get_experiment(experiment_id).state.value == "RUNNING"
    if is_running or any(next(folder.rglob("*tfevents*"), None) for folder in folders):
        return
    if is_here:
        searched = ", ".join(str(folder.resolve()) for folder in folders) or "none"
        raise NotFoundError(
            f"the trials of experiment {experiment_id} wrote no event files.\n"
            f"Searched for *tfevents* in: {searched}."
        )
    raise NotFoundError(
        f"the server has no event files of experiment {experiment_id}.\n"
        "Its trials wrote no event files, or ran on other machines and only report to the server.\n"
        "On those machines, without --master and DETCORE_MASTER, run:  "
        f"detcore tensorboard {experiment_id}"
    )


def _split_arguments(arguments: Iterable[str]) -> tuple[list[int], list[str]]:
    """Return the leading ids, and TensorBoard's arguments."""
    ids: list[int] = []
    words = list(arguments)
    while words and not words[0].startswith("-"):
        text = words.pop(0)
        if not text.isdecimal():
            raise click.UsageError(f"{text!r} is not an experiment id, such as 3")
        ids.append(int(text))
    return list(dict.fromkeys(ids)), words[1:] if words[:1] == ["--"] else words


def _require_tensorboard() -> None:
    import importlib.util

    if importlib.util.find_spec("tensorboard") is None:
        raise RunError(
            f"TensorBoard is not installed in this environment ({sys.prefix}).\n"
            "Install it with:  pip install tensorboard"
        )
