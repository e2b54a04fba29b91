"""The live table of a search: its best trials, and those that run."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from rich.console import Console, Group, RenderableType
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from detcore.cli._output import format_duration, format_number, state_text

if TYPE_CHECKING:
    from detcore.cli._progress import RunProgress, TrialProgress

__all__ = ["draw_search", "state_of", "time_left"]

_MOST_ROWS = 20
# Header, title of the table, the line about omitted rows, and some lines of earlier output.
_OTHER_LINES = 7
# Columns of the table.
_HPARAMS, _RUNG = 2, 4
_LEAST_WIDTH = 15
_BEST = "*"  # marks the best trial, also where there are no colours
# In the order in which they are counted in the header.
_STATES = ("running", "completed", "error", "canceled", "not started", "waits", "interrupted")


def draw_search(progress: RunProgress, console: Console) -> Group:
    """Return the table as it is now, at most as high as the terminal."""
    trials = list(progress.trials.values())
    limit = max(3, min(_MOST_ROWS, console.height - _OTHER_LINES))
    shown = _choose(progress, trials, limit)
    parts: list[RenderableType] = [
        _header(progress, trials),
        _table(progress, shown, console.width),
    ]
    if len(shown) < len(trials):
        rest = Counter(state_of(each) for each in trials if each not in shown)
        listed = ", ".join(f"{count} {state}" for state, count in rest.most_common())
        parts.append(Text(f"and {len(trials) - len(shown)} more: {listed}", style="dim"))
    return Group(*parts)


def state_of(trial: TrialProgress) -> str:
    """Return the state of a trial, in a word or two."""
    status = trial.status
    if status is None:
        return "running"
    if status.state.value == "PAUSED":
        if status.is_waiting:
            return "waits"
        return "not started" if trial.info is None and not status.rung else "interrupted"
    return status.state.value.lower()


def time_left(seconds: float | None) -> str:
    """Return a remaining time such as "27s left", or "" if it is unknown."""
    return "" if seconds is None else f"{format_duration(seconds)} left"


def _header(progress: RunProgress, trials: list[TrialProgress]) -> Group:
    counts = Counter(map(state_of, trials))
    listed = ", ".join(f"{counts[state]} {state}" for state in _STATES if counts[state])
    line = Table.grid(padding=(0, 1))
    line.add_row(
        Text(progress.searcher, style="bold"),
        ProgressBar(total=1.0, completed=progress.done, width=20),
        Text(f"{progress.done:.0%}"),
        Text(progress.amount, no_wrap=True),
        Text(time_left(progress.seconds_left), style="cyan", no_wrap=True),
    )
    count = f"{len(trials)} trials: {listed}"
    if progress.best is not None:
        count += f"; {_BEST} best: trial {progress.best.trial_id}"
    return Group(line, Text(count, no_wrap=True, overflow="ellipsis"))


def _table(progress: RunProgress, shown: list[TrialProgress], width: int) -> Table:
    everything = list(progress.trials.values())
    has_rungs = any(each.status and each.status.rung > 1 for each in everything)
    titles = ["trial", "state", "hyperparameters", "batches", "rung", f"best {progress.metric}"]
    rows = [_cells(progress, trial, progress.best) for trial in shown]
    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    # The hyperparameters give way, the others are short: rich would cut all of them.
    others = [max(map(len, column)) for column in zip(titles, *rows, strict=True)]
    left = width - sum(each + 2 for place, each in enumerate(others) if place != _HPARAMS)
    for place, title in enumerate(titles):
        if title == "rung" and not has_rungs:
            continue
        is_wide = place == _HPARAMS
        table.add_column(
            title,
            justify="left" if place in (1, _HPARAMS) else "right",
            no_wrap=True,
            overflow="ellipsis",
            min_width=None if is_wide else others[place],
            max_width=max(_LEAST_WIDTH, left) if is_wide else None,
        )
    for row in rows:
        table.add_row(*(each for place, each in enumerate(row) if has_rungs or place != _RUNG))
    return table


def _cells(
    progress: RunProgress, trial: TrialProgress, best: TrialProgress | None
) -> tuple[Text, ...]:
    state = state_of(trial)
    of = f"/{trial.length}" if trial.length and state == "running" else ""
    metric = "-" if trial.best is None else format_number(trial.best)
    return (
        Text(f"{_BEST} {trial.trial_id}" if trial is best else str(trial.trial_id)),
        state_text(state),
        Text(progress.hparams(trial)),
        Text(f"{trial.steps}{of}" if trial.info or trial.steps else "-"),
        Text(str(trial.status.rung if trial.status else 0)),
        Text(metric, style="bold green" if trial is best else ""),
    )


def _choose(progress: RunProgress, trials: list[TrialProgress], limit: int) -> list[TrialProgress]:
    """Return the trials to show, by number: those that run, then the best, then the others."""
    sign = 1 if progress.smaller_is_better else -1

    def rank(trial: TrialProgress) -> tuple[int, float, int]:
        if state_of(trial) == "running":
            return (0, 0.0, trial.trial_id)
        if trial.best is not None:
            return (1, sign * trial.best, trial.trial_id)
        return (2, 0.0, trial.trial_id)

    return sorted(sorted(trials, key=rank)[:limit], key=lambda trial: trial.trial_id)
