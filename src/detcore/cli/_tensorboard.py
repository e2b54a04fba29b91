"""``detcore tensorboard``: TensorBoard on what trials wrote."""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detcore.cli._records import open_records
from detcore.errors import NotFoundError, RunError

if TYPE_CHECKING:
    from detcore.cli._context import CliContext
    from detcore.database import TrialRecord

__all__ = ["tensorboard"]

_EXAMPLES = """
\b
Examples:
  detcore tensorboard 3
  detcore tensorboard 3 5 -- --port 6007 --bind_all
"""


@click.command(
    epilog=_EXAMPLES,
    context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False},
    options_metavar="",
)
@click.argument("arguments", nargs=-1, metavar="EXPERIMENT_ID... [--] [TENSORBOARD_OPTIONS]")
@click.pass_obj
def tensorboard(obj: CliContext, arguments: tuple[str, ...]) -> None:
    """Start TensorBoard on the event files of the trials of experiments.

    Runs are called experiment-ID/TRIAL/...; trials that start later appear by themselves. What
    follows the ids is passed on to TensorBoard.
    """
    ids, rest = _split(arguments)
    if not ids:
        raise click.UsageError("give the id of an experiment")
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
    command = [sys.executable, "-m", "tensorboard.main", "--logdir", str(where), *rest]
    click.echo(f"event files: {where}", err=True)
    sys.stdout.flush()
    os.execv(command[0], command)


def _split(arguments: Iterable[str]) -> tuple[list[int], list[str]]:
    """Return the ids that come first, and what is TensorBoard's."""
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
