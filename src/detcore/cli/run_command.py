"""``detcore run``: train or resume an experiment."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

import click

from detcore.cli.cli_context import load_experiment_file
from detcore.cli.output import format_hparams, print_line, printable
from detcore.cli.shell_completion import EXPERIMENT_ID

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext
    from detcore.run import ExperimentResult


_EXIT_INTERRUPTED = 130
# Maximum number of trials listed at the end of a search.
_MAX_TRIALS = 10
_EXAMPLES = """
\b
Examples:
  detcore run const.yaml                      train the code next to const.yaml
  detcore run const.yaml model/ --test        one batch, one validation, one checkpoint
  detcore run const.yaml --set searcher.max_length.epochs=2
  detcore run const.yaml --slots 2            train in two worker processes
  detcore run adaptive.yaml --max-slots 4     search with at most four slots
  detcore run --resume 3                      resume experiment 3
  detcore run --resume 3 --set searcher.metric=val_loss
  detcore run const.yaml --master URL         submit to a server, and follow

\b
Exit codes:
  0    completed; trials of a search may have failed (the last lines list them)
  1    failed or canceled
  2    invalid command line or experiment file
  75   interrupted; resume with --resume
  130  interrupted twice, without a checkpoint; with --master: interrupted once,
       and the experiment continues on the server
"""


class _RunCommand(click.Command):
    """Shows both forms of the command in its usage."""

    def format_usage(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """Write one usage line per form."""
        formatter.write_usage(ctx.command_path, "[OPTIONS] CONFIG.yaml [MODEL_DIR]")
        formatter.write_usage(ctx.command_path, "[OPTIONS] --resume ID", prefix=" " * 7)


@click.command(cls=_RunCommand, epilog=_EXAMPLES)
@click.argument(
    "config", required=False, type=click.Path(path_type=Path, dir_okay=False), metavar="CONFIG.yaml"
)
@click.argument(
    "model_dir",
    required=False,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="[MODEL_DIR]",
)
@click.option("--resume", type=EXPERIMENT_ID, metavar="ID", help="Resume this experiment.")
@click.option(
    "--test",
    "test_mode",
    is_flag=True,
    help="Test the code: one batch, one validation, one checkpoint.",
)
@click.option("--json", "as_json", is_flag=True, help="Print the result as JSON on stdout.")
@click.option("--quiet", "-q", is_flag=True, help="Show only errors, retries, and the result.")
@click.option(
    "--verbose",
    "-v",
    is_flag=True,
    help="Show messages of frameworks and, in a pipe, all output of the trials of a search.",
)
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a setting of the file (repeatable). With --resume, only settings that do not "
    "affect earlier steps.",
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Train in N worker processes (resources.slots_per_trial).",
)
@click.option("--launcher", metavar="NAME", help="Launcher of the worker processes (launcher).")
@click.option(
    "--max-slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Maximum number of slots for concurrent trials (resources.max_slots).  [default: the "
    "accelerators of this machine, or one trial at a time]",
)
@click.option(
    "--master",
    metavar="URL",
    help="Submit to this server (detcore serve) with MODEL_DIR, and follow the experiment.",
)
@click.option(
    "--detach",
    is_flag=True,
    help="Do not follow the experiment: a process without this terminal, or the server, runs it.",
)
@click.pass_obj
def run(obj: CliContext, /, **values: Any) -> None:
    """Train or resume an experiment in this terminal.

    CONFIG.yaml is the experiment file. Leave it out with --resume. MODEL_DIR is the directory of
    your code, by default the directory of the experiment file.

    With --master, a server trains the experiment. MODEL_DIR is uploaded, except for files that its
    .detignore excludes. Ctrl-C only stops following. With --resume ID, the experiment resumes on
    the server, or is followed again.
    """
    options = _Options(**values)
    _check_options(options)
    if options.master is None:
        _run_here(obj, options)
    else:
        _run_at(obj, options.master, options)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """The arguments and options of ``detcore run``."""

    config: Path | None
    model_dir: Path | None
    resume: int | None
    test_mode: bool
    as_json: bool
    quiet: bool
    verbose: bool
    settings: tuple[str, ...]
    slots: int | None
    launcher: str | None
    max_slots: int | None
    master: str | None
    detach: bool

    def list_settings(self) -> tuple[str, ...]:
        """Return the values of ``--set``, followed by options for single settings, which win."""
        values = {
            "launcher.name": self.launcher,
            "resources.slots_per_trial": self.slots,
            "resources.max_slots": self.max_slots,
        }
        flags = [
            f"{name}={json.dumps(value)}" for name, value in values.items() if value is not None
        ]
        # A different launcher replaces the section in the file, but not the following settings.
        first = () if self.launcher is None else (f"launcher={json.dumps(self.launcher)}",)
        return (*first, *self.settings, *flags)

    def describe_start(self, at: str) -> str | None:
        """Return how to start again after a correction of the file; None for a resumed run."""
        if self.config is None:
            return None
        if self.test_mode or self.list_settings():
            return "start again with the same options"
        paths = [str(path) for path in (self.config, self.model_dir) if path is not None]
        return f"start again:  {shlex.join(['detcore', 'run', *paths])}{at}"


def _check_options(options: _Options) -> None:
    """Raise a usage error for options that exclude each other."""
    is_resumed, is_remote = options.resume is not None, options.master is not None
    if (options.config is None) != is_resumed:
        raise click.UsageError("give either an experiment file or --resume ID")
    if is_resumed and options.test_mode:
        raise click.UsageError("--test cannot be used with --resume")
    if is_resumed and options.settings and is_remote:
        raise click.UsageError(
            "--set cannot be used with --resume and --master; submit a new experiment with "
            "--set searcher.source_checkpoint_uuid=UUID to start from a checkpoint"
        )
    if options.quiet and options.verbose:
        raise click.UsageError("give --quiet or --verbose, not both")
    if options.verbose and is_remote:
        raise click.UsageError("--verbose cannot be used with --master")
    if options.detach and not is_remote and (options.test_mode or options.verbose):
        raise click.UsageError("--test and --verbose cannot be used with --detach")
    is_elsewhere = is_remote or options.detach
    if is_resumed and is_elsewhere and (options.slots or options.launcher or options.max_slots):
        raise click.UsageError(
            "--slots, --launcher and --max-slots cannot be used with --resume and --master or "
            "--detach"
        )
    if is_resumed and options.settings and options.detach:
        raise click.UsageError("--set cannot be used with --resume and --detach")


def _run_here(obj: CliContext, options: _Options) -> None:
    """Train the experiment on this machine."""
    plugins = obj.plugin_manager()
    from detcore.config import parse_set_flags
    from detcore.run import RunSettings, record_experiment, resume_experiment, start_experiment

    display = _make_display(options)
    with contextlib.closing(display):
        run_settings = RunSettings(
            environment=obj.environment,
            plugins=plugins,
            listener=display,
            max_slots=options.max_slots,
            is_verbose=options.verbose,
        )
        if options.config is not None:
            if obj.environment.master is not None:
                display.notice(
                    f"training on this machine; to use {obj.environment.master} from the "
                    f"environment, pass --master {obj.environment.master}"
                )
            folder = (options.model_dir or options.config.parent).absolute()
            loaded = load_experiment_file(
                options.config,
                options.list_settings(),
                environment=obj.environment,
                plugins=plugins,
                code_dir=folder,
            )
            for notice in loaded.notices:
                display.notice(notice)
            if options.detach:
                _detach(obj, options, record_experiment(loaded, folder, run_settings))
            result = start_experiment(loaded, folder, run_settings, test_mode=options.test_mode)
        elif options.detach:
            _detach(obj, options, options.resume or 0)
        else:
            result = resume_experiment(
                options.resume or 0,
                run_settings,
                slots=options.slots,
                launcher=options.launcher,
                changes=parse_set_flags(options.settings),
            )
    _print_result(result, display, options)
    raise SystemExit(_get_exit_code(result))


def _detach(obj: CliContext, options: _Options, number: int) -> NoReturn:
    """Resume an experiment in a process that outlives this terminal, and exit."""
    from detcore.client.local_control import activate_locally
    from detcore.records import Database

    with Database.open(obj.environment.database_url) as database:
        log = activate_locally(database, obj.environment, number)
    text = (
        f"experiment {number} runs without this terminal.\nIts output:  {log}\n"
        f"End it:      detcore experiment pause {number}"
    )
    click.echo(text, err=options.as_json)
    if options.as_json:
        click.echo(json.dumps({"experiment_id": number, "state": "RUNNING"}))
    raise SystemExit(0)


def _run_at(obj: CliContext, master: str, options: _Options) -> None:
    """Train the experiment on a server, as `_run_here` does on this machine."""
    from detcore.client.http import (
        DetachedError,
        Submission,
        activate_experiment,
        follow_experiment,
        submit_experiment,
    )
    from detcore.config import parse_set_flags

    environment = obj.environment
    display = _make_display(options)
    try:
        with contextlib.closing(display):
            if options.config is not None:
                send_submission = Submission.from_file(
                    options.config,
                    overrides=parse_set_flags(options.list_settings()),
                    environment=environment.config_overrides,
                    test_mode=options.test_mode,
                )
                folder = options.model_dir or options.config.absolute().parent
                session, number = submit_experiment(
                    master, send_submission, folder, environment=environment, notice=display.notice
                )
            else:
                number = options.resume or 0
                session = activate_experiment(master, number, environment=environment)
            if options.detach:
                raise DetachedError(number, session.url)
            result = follow_experiment(session, number, display)
    except DetachedError as detached:
        click.echo(str(detached), err=options.as_json)
        if options.as_json:
            click.echo(json.dumps({"experiment_id": number, "state": "RUNNING"}))
        raise SystemExit(0 if options.detach else _EXIT_INTERRUPTED) from None
    _print_result(result, display, options, at=f" --master {session.url}")
    raise SystemExit(_get_exit_code(result))


def _make_display(options: _Options) -> Any:
    from rich.console import Console

    from detcore.cli.run_display import LiveDisplay, PlainDisplay, QuietDisplay

    console = Console(stderr=options.as_json)
    if options.quiet:
        return QuietDisplay(console)
    if console.is_terminal:
        return LiveDisplay(console)
    return PlainDisplay(console, is_verbose=options.verbose)


def _get_exit_code(result: ExperimentResult) -> int:
    from detcore.launch.worker import EXIT_ERROR, EXIT_TEMPFAIL

    if result.was_killed:
        return _EXIT_INTERRUPTED
    codes = {"COMPLETED": 0, "PAUSED": EXIT_TEMPFAIL}
    return codes.get(result.state.value, EXIT_ERROR)


def _print_result(result: ExperimentResult, display: Any, options: _Options, at: str = "") -> None:
    if options.as_json:
        # Printed last, so that programs find it on the last line.
        summary = {
            "experiment_id": result.experiment_id,
            "state": result.state.value,
            "trials": [dataclasses.asdict(trial) for trial in result.trials],
            "error": result.error,
        }
        click.echo(json.dumps(summary))
        return
    is_shown = result.error is not None and display.has_shown(printable(result.error))
    start = options.describe_start(at)
    for line in _make_summary(result, at, is_error_shown=is_shown, start=start):
        print_line(line)


def _make_summary(
    result: ExperimentResult,
    at: str = "",
    *,
    is_error_shown: bool = False,
    start: str | None = None,
) -> list[str]:
    lines = [f"experiment {result.experiment_id}: {result.state.value.lower()}"]
    if result.error and not is_error_shown:
        lines[0] += f": {result.error}"
    if len(result.trials) > 1:
        lines += _describe_best_trial(result, at)
    for trial in result.ranked[:_MAX_TRIALS]:
        best = "-" if trial.best_validation is None else f"{trial.best_validation:.4g}"
        batches = "1 batch" if trial.steps_completed == 1 else f"{trial.steps_completed} batches"
        lines.append(
            f"  trial {trial.trial_id}: {batches}, "
            f"best {result.metric} {best}, latest checkpoint {trial.latest_checkpoint or '-'}"
        )
    if len(result.trials) > _MAX_TRIALS:
        lines.append(f"  and {len(result.trials) - _MAX_TRIALS} more")
    state = result.state.value
    failed = [str(trial.trial_id) for trial in result.trials if trial.state == "ERROR"]
    if failed and state == "COMPLETED":
        listed = ", ".join(failed[:_MAX_TRIALS]) + (", ..." if failed[_MAX_TRIALS:] else "")
        lines.append(f"{len(failed)} of {len(result.trials)} trials failed: {listed}")
    if state == "PAUSED":
        lines.append(f"resume with:  detcore run --resume {result.experiment_id}{at}")
    elif state == "ERROR":
        lines += _suggest_repair(result, at, start)
    elif state == "COMPLETED":
        lines.append(f"details:  detcore experiment describe {result.experiment_id}{at}")
    return lines


def _suggest_repair(result: ExperimentResult, at: str, start: str | None) -> list[str]:
    """Return lines about how to continue after a failure."""
    metric = _suggest_metric(result)
    command = f"detcore run --resume {result.experiment_id}{at}{metric}"
    has_any = any(trial.latest_checkpoint for trial in result.trials)
    if start is not None and not metric and not has_any:  # nothing is lost by starting again
        return [
            f"if the cause is in the experiment file, correct it and {start}",
            f"otherwise, fix the cause, then try again:  {command}",
        ]
    action = "resume from the latest checkpoint" if has_any else "try again"
    return [
        "a resumed experiment keeps its configuration; edits of the file are ignored",
        f"fix the cause, then {action}:  {command}",
    ]


def _suggest_metric(result: ExperimentResult) -> str:
    """Return the option that corrects ``searcher.metric``, if its name caused the error."""
    if "searcher.metric" not in (result.error or "") or not result.reported_metrics:
        return ""
    from detcore.contract.errors import closest_match

    name = closest_match(result.metric, result.reported_metrics) or result.reported_metrics[0]
    return f" --set searcher.metric={name}"


def _describe_best_trial(result: ExperimentResult, at: str) -> list[str]:
    """Return lines about the best trial of a search and its checkpoint."""
    from detcore.record_descriptions import flatten

    best = result.ranked[0]
    if best.best_validation is None:
        return []
    hparams = format_hparams(flatten(best.hparams))
    lines = [
        f"best: trial {best.trial_id}, {result.metric} {best.best_validation:.4g} at batch "
        f"{best.best_steps}{f' ({hparams})' if hparams else ''}"
    ]
    if best.latest_checkpoint:
        lines.append(f"best checkpoint:  detcore experiment best {result.experiment_id}{at}")
    return lines
