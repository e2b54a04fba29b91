"""``detcore trial logs`` and ``detcore experiment logs``: the output of workers."""

from __future__ import annotations

import datetime
import functools
import heapq
import json
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

import click

from detcore.cli.output import (
    format_options,
    pick_fields,
    plain_value,
    print_csv,
    printable,
)
from detcore.cli.record_access import master_option, open_records, read_log
from detcore.cli.shell_completion import experiment_argument, trial_argument

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext
    from detcore.cli.output import Format
    from detcore.records import Database, LogLine, TrialRecord


_POLL_INTERVAL_S = 0.2
_TRIAL_EXAMPLES = """
\b
Examples:
  detcore trial logs 3 --tail 20
  detcore trial logs 3 -f              follow until the trial has ended
  detcore trial logs 3 --rank 1        only the worker with rank 1
"""
_CSV_COLUMNS = ("at", "trial_id", "run", "rank", "stream", "text")
_EXPERIMENT_EXAMPLES = """
\b
Examples:
  detcore experiment logs 3 --tail 50
  detcore experiment logs 3 -f         follow all trials, including later ones
"""


def _log_options(command: Any) -> Any:
    for option in (
        master_option,
        format_options,
        click.option("--timestamps", is_flag=True, help="Show the time of each line."),
        click.option(
            "--rank", type=click.IntRange(min=0), metavar="R", help="Show only this rank's output."
        ),
        click.option(
            "--tail", type=click.IntRange(min=0), metavar="N", help="Show only the last N lines."
        ),
        click.option("--raw", is_flag=True, help="Keep colours and control sequences."),
        click.option("-f", "--follow", is_flag=True, help="Wait for more lines until the end."),
    ):
        command = option(command)
    return command


@click.command("logs", epilog=_TRIAL_EXAMPLES)
@trial_argument
@_log_options
def trial_logs(obj: CliContext, /, trial_id: int, **options: Any) -> None:
    """Show the output of a trial's workers, oldest lines first.

    --json prints one JSON object per line.
    """
    with open_records(obj) as database:
        trial = database.get_trial(trial_id)

        def is_over() -> bool:
            state = database.get_trial(trial_id).state.value
            return state != "RUNNING" or not database.is_experiment_alive(trial.experiment_id)

        _show_logs(database, lambda: [trial], is_over, with_trial=False, **options)


@click.command("logs", epilog=_EXPERIMENT_EXAMPLES)
@experiment_argument
@_log_options
def experiment_logs(obj: CliContext, /, experiment_id: int, **options: Any) -> None:
    """Show the output of an experiment's trials, oldest lines first.

    Each line starts with the trial's id. --json prints one JSON object per line.
    """
    with open_records(obj) as database:
        database.get_experiment(experiment_id)  # an unknown id is an error

        def is_over() -> bool:
            _, is_alive = database.observe_experiment(experiment_id)
            return not is_alive

        trials = functools.partial(database.list_trials, experiment_id)
        _show_logs(database, trials, is_over, with_trial=True, **options)


def last_lines(database: Database, trial: TrialRecord, number: int) -> list[LogLine]:
    """Return the last lines that a trial's workers printed."""
    return list(deque(read_log(database, trial, 0)[0], maxlen=number))


def _read_new_lines(
    database: Database, trials: list[TrialRecord], positions: dict[int, int]
) -> Iterator[tuple[int, LogLine]]:
    """Yield the lines after some positions as trial and line, sorted by time."""
    added = []
    for trial in trials:
        lines, positions[trial.id] = read_log(database, trial, positions.get(trial.id, 0))
        added.append([(line.at, trial.id, at, line) for at, line in enumerate(lines)])
    for _, trial_id, _, line in heapq.merge(*added):
        yield trial_id, line


def _make_document(trial_id: int, line: LogLine) -> dict[str, Any]:
    at = plain_value(_get_time(line))
    return {"at": at, "trial_id": trial_id, **pick_fields(_CSV_COLUMNS[2:], line)}


def _get_time(line: LogLine) -> datetime.datetime:
    return datetime.datetime.fromtimestamp(line.at, datetime.timezone.utc)


def _format_line(
    trial_id: int, line: LogLine, *, timestamps: bool, with_trial: bool, with_rank: bool, raw: bool
) -> str:
    at = _get_time(line).astimezone().strftime("%Y-%m-%d %H:%M:%S.%f")[:-3]
    parts = [
        (at, timestamps),
        (f"trial {trial_id}", with_trial),
        (f"[{line.rank}]", with_rank),
        ("|", with_trial),
        (line.text if raw else printable(line.text), True),
    ]
    return " ".join(part for part, is_shown in parts if is_shown)


def _show_logs(
    database: Database,
    list_trials: Callable[[], list[TrialRecord]],
    is_over: Callable[[], bool],
    *,
    with_trial: bool,
    follow: bool,
    tail: int | None,
    rank: int | None,
    timestamps: bool,
    raw: bool,
    form: Format,
) -> None:
    positions: dict[int, int] = {}
    with_rank = False
    with_header = True

    def read() -> Iterator[tuple[int, LogLine]]:
        added = _read_new_lines(database, list_trials(), positions)
        return (item for item in added if rank in (None, item[1].rank))

    def show(lines: Iterable[tuple[int, LogLine]]) -> None:
        nonlocal with_rank, with_header
        if form == "csv":
            rows = [_make_document(trial_id, line) for trial_id, line in lines]
            if rows or with_header:
                print_csv(rows, _CSV_COLUMNS, with_header=with_header)
            with_header = False
            return
        for trial_id, line in lines:
            with_rank = with_rank or line.rank > 0
            text = (
                json.dumps(_make_document(trial_id, line))
                if form == "json"
                else _format_line(
                    trial_id, line,
                    timestamps=timestamps, with_trial=with_trial, with_rank=with_rank, raw=raw,
                )
            )  # fmt: skip
            click.echo(text, color=True if raw else None)  # None: only on a terminal

    _show_lines(read, is_over, show, follow=follow, tail=tail)


def _show_lines(
    read: Callable[[], Iterable[tuple[int, LogLine]]],
    is_over: Callable[[], bool],
    show: Callable[[Iterable[tuple[int, LogLine]]], None],
    *,
    follow: bool,
    tail: int | None,
) -> None:
    ends = not follow or is_over()  # checked before reading, so that no line is missed
    lines = read()
    show(lines if tail is None else deque(lines, maxlen=tail))
    while not ends:
        time.sleep(_POLL_INTERVAL_S)
        ends = is_over()
        show(read())
