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


# How often new trials, and the event files of a server, are looked for.
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
    """Start TensorBoard on the event files of the trials of experiments.

    Runs are called experiment-ID/TRIAL/...; trials that start later appear by themselves. The
    arguments after the ids are passed on to TensorBoard. It reads a temporary folder with links to
    the event files, or with copies of a server's, which is brought up to date while it runs.
    """
    ids, rest = _split(arguments)
    if not ids:
        raise click.UsageError("give the id of an experiment")
    for number in (signal.SIGTERM, signal.SIGHUP):  # which would leave TensorBoard and the folder
        signal.signal(number, _end)
    with (
        tempfile.TemporaryDirectory(prefix="detcore-tensorboard-") as name,
        open_records(obj) as database,
        open_client(obj) if obj.master is not None else contextlib.nullcontext() as client,
    ):
        where = Path(name)
        done: set[tuple[int, int]] = set()
        for experiment_id in ids:
            _collect(database, client, experiment_id, where, done)
            _require_events(database, experiment_id, where, is_here=client is None)
        _require_tensorboard()
        click.echo(f"event files: {where}", err=True)
        command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(where), *rest]
        with subprocess.Popen(command) as running:
            try:
                while True:
                    with contextlib.suppress(subprocess.TimeoutExpired):
                        raise SystemExit(running.wait(_REFRESH_S))
                    with contextlib.suppress(UnavailableError):  # the next pass asks again
                        for experiment_id in ids:
                            _collect(database, client, experiment_id, where, done)
            finally:
                running.terminate()


def _end(number: int, _frame: FrameType | None) -> None:
    sys.exit(128 + number)


def _collect(
    database: Database,
    client: Determined | None,
    experiment_id: int,
    where: Path,
    done: set[tuple[int, int]],
) -> None:
    """Link or copy the event files that the trials of an experiment have written.

    Args:
        client: Of the server whose files are copied; None: the files are here.
        done: Trials and runs that need no other pass; those of this pass are added.
    """
    for trial in database.list_trials(experiment_id):
        folder = where / f"experiment-{experiment_id}" / str(trial.id)
        if (trial.id, trial.run_id) in done:
            continue
        if client is not None:
            with contextlib.suppress(NotFoundError):  # it has written none yet
                client.get_trial(trial.id).download_event_files(folder)
        elif trial.trial_dir is not None and not folder.is_symlink():
            folder.parent.mkdir(exist_ok=True)
            folder.symlink_to(trial.trial_dir)
        if trial.state.value != "RUNNING":
            done.add((trial.id, trial.run_id))


def _require_events(database: Database, experiment_id: int, where: Path, *, is_here: bool) -> None:
    folders = [*where.glob(f"experiment-{experiment_id}/*/")]
    is_running = database.get_experiment(experiment_id).state.value == "RUNNING"
    if is_running or any(next(one.rglob("*tfevents*"), None) for one in folders):
        return
    if is_here:
        looked = ", ".join(str(one.resolve()) for one in folders) or "none"
        raise NotFoundError(
            f"the trials of experiment {experiment_id} wrote no event files.\n"
            f"Looked for *tfevents* in: {looked}."
        )
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


def _require_tensorboard() -> None:
    import importlib.util

    if importlib.util.find_spec("tensorboard") is None:
        raise RunError(
            f"TensorBoard is not installed in this environment ({sys.prefix}).\n"
            "Install it: pip install tensorboard"
        )
