"""``detcore check-resume``: whether a resumed run ends as an uninterrupted run."""

from __future__ import annotations

import dataclasses
import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detcore.cli import print_json, print_line
from detcore.config import load_config, parse_set_flags
from detcore.errors import DetcoreError
from detcore_replay.commands.result_printing import to_document
from detcore_replay.resume_check.check_result import Plan
from detcore_replay.resume_check.program_check import ProgramCheck
from detcore_replay.resume_check.scratch_runs import ProgramFailedError, ScratchRuns, open_scratch
from detcore_replay.resume_check.training_check import TrainingCheck
from detcore_replay.resume_check.two_runs import run_check

if TYPE_CHECKING:
    from detcore.cli import CliContext
    from detcore_replay.resume_check.check_result import CheckResult


_EXIT_NOT_EXACT = 1
_EXIT_NOT_RUNNABLE = 2
_CONFIG_SUFFIXES = (".yaml", ".yml", ".json")
_CHECKPOINTS_PER_RUN = 10
_VALIDATION = "min_validation_period"
_EXACT = "resume is exact: all compared values have the same bits"
_EQUAL = "two uninterrupted runs are equal: all compared values have the same bits"
_EXAMPLES = """
\b
Examples:
  detcore check-resume const.yaml model/
  detcore check-resume const.yaml --batches 100
  detcore check-resume -- python3 train.py --epochs 1
  detcore check-resume --start 'python3 train.py' \\
      --resume 'python3 train.py --resume' --output final.safetensors

\b
Exit codes:
  0    exact: both runs ended with the same bits
  1    not exact; the output shows the first difference
  2    invalid command line, or the program cannot be run
"""


@click.command("check-resume", epilog=_EXAMPLES)
@click.argument("words", nargs=-1, metavar="[CONFIG.yaml [MODEL_DIR] | -- COMMAND...]")
@click.option(
    "--batches", type=click.IntRange(min=4), default=30, show_default=True,
    help="Length of the training with an experiment file.",
)  # fmt: skip
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE",
    help="Override a setting of the experiment file (repeatable).",
)  # fmt: skip
@click.option("--start", metavar="CMD", help="Shell command that starts any program.")
@click.option("--resume", metavar="CMD", help="Shell command that resumes it after a kill.")
@click.option(
    "--output", metavar="PATH", type=click.Path(path_type=Path),
    help="Its final file or directory, relative to the working directory.",
)  # fmt: skip
@click.option(
    "--kills", "num_kills", type=click.IntRange(min=0), default=3, show_default=True,
    help="Number of kills; 0 compares two uninterrupted runs.",
)  # fmt: skip
@click.option(
    "--kill-after", type=click.FloatRange(min=0), multiple=True, metavar="SECONDS",
    help="Kill the next run at this time after its start (repeatable).  [default: between "
    "checkpoints]",
)  # fmt: skip
@click.option(
    "--link", "linked", multiple=True, metavar="PATH",
    help="Link a directory that is only read, instead of copying it (repeatable).",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def check_resume(context: click.Context, /, **values: Any) -> None:
    """Check whether a killed and resumed run ends like an uninterrupted run.

    Trains twice in copies of the working directory: uninterrupted, then with kills (SIGKILL). With
    an experiment file or a script that uses detcore, steps, metrics and states are compared. With
    --start, the tensors of the final files are compared. Nothing is left behind.
    """
    as_json = values.pop("as_json")
    options = _Options(**{**values, "num_kills": len(values["kill_after"]) or values["num_kills"]})
    _check_options(options)
    try:
        with open_scratch() as scratch:
            result = _run_check(context.obj, options, scratch)
    except DetcoreError as error:
        click.echo(f"error: {error}", err=True)
        context.exit(_EXIT_NOT_RUNNABLE)
    if as_json:
        print_json(to_document(result))
    else:
        _print_result(result)
    context.exit(0 if result.is_equal else _EXIT_NOT_EXACT)


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class _Options:
    """The arguments and options of the command."""

    words: tuple[str, ...]
    batches: int
    settings: tuple[str, ...]
    start: str | None
    resume: str | None
    output: Path | None
    num_kills: int
    kill_after: tuple[float, ...]
    linked: tuple[str, ...]

    @property
    def has_config(self) -> bool:
        return self.words[0].endswith(_CONFIG_SUFFIXES)


def _check_options(options: _Options) -> None:
    """Raise a usage error for options that exclude each other."""
    program = (options.start, options.resume, options.output)
    if any(program) and not all(program):
        raise click.UsageError("--start, --resume and --output are needed together")
    if bool(options.words) == all(program):
        raise click.UsageError(
            "give an experiment file, or a command after --, or --start, --resume and --output"
        )
    if options.output is not None and (
        options.output.is_absolute() or ".." in options.output.parts
    ):
        raise click.UsageError(
            f"--output {options.output} is not below the working directory. The program runs in "
            "copies of this directory, so let it write to a relative path"
        )
    if options.words and options.has_config and len(options.words) > 2:
        raise click.UsageError(f"unexpected argument {options.words[2]!r} after MODEL_DIR")
    if options.settings and not (options.words and options.has_config):
        raise click.UsageError("--set requires an experiment file")


def _run_check(obj: CliContext, options: _Options, scratch: Path) -> CheckResult:
    source = Path.cwd()
    numbers = itertools.count(1)

    def open_runs() -> ScratchRuns:
        return ScratchRuns(scratch / str(next(numbers)), source, options.linked)

    def notice(text: str) -> None:
        click.echo(text, err=True)

    plan = Plan(
        start=options.start or options.words,
        resume=options.resume or options.words,
        kill_after=options.kill_after,
        num_kills=options.num_kills,
    )
    if options.output is not None:
        return run_check(ProgramCheck(options.output), plan, open_runs, notice)
    if not options.has_config:
        return run_check(TrainingCheck(), plan, open_runs, notice)
    config = Path(options.words[0]).absolute()
    source = Path(options.words[1]).absolute() if options.words[1:] else config.parent
    values = _choose_settings(obj, options, config, source, scratch)
    flags = [f"--set={name}={json.dumps(value)}" for name, value in values.items()]
    detcore = (sys.executable, "-m", "detcore", "run")
    settings = [f"--set={text}" for text in options.settings]
    start = (*detcore, str(config), ".", *settings, *flags)
    plan = dataclasses.replace(plan, start=start, resume=(*detcore, "--resume", "1"))
    try:
        return run_check(TrainingCheck(), plan, open_runs, notice)
    except ProgramFailedError as error:
        if f"{_VALIDATION}: " not in str(error):
            raise
    # The number of batches in an epoch is unknown.
    plan = dataclasses.replace(plan, start=start[:-1])
    return run_check(TrainingCheck(), plan, open_runs, notice)


def _choose_settings(
    obj: CliContext, options: _Options, file: Path, code_dir: Path, scratch: Path
) -> dict[str, object]:
    """Return settings for a short training with many checkpoints in the scratch directory."""
    config = load_config(
        file,
        overrides=parse_set_flags(options.settings),
        environment=obj.environment.config_overrides,
        required=("entrypoint",),
        code_dir=code_dir,
        models=obj.plugin_manager().settings_models(),
    ).config
    length = {"batches": options.batches}
    settings: dict[str, object] = {"searcher.max_length": length}
    if config.searcher.name != "single":
        metric = {"metric": config.searcher.metric}
        settings = {"searcher": {"name": "single", **metric, "max_length": length}}
    checkpoints = scratch / "checkpoints"
    checkpoints.mkdir()
    return {
        **settings,
        "reproducibility.experiment_seed": config.reproducibility.experiment_seed,
        "reproducibility.step_digests": 1,
        "checkpoint_storage": {
            "type": "directory",
            "container_path": str(checkpoints),
            "save_trial_latest": options.batches,
        },
        "scheduling_unit": 1,
        "min_checkpoint_period": {"batches": max(2, options.batches // _CHECKPOINTS_PER_RUN)},
        "checkpoint_policy": "all",
        "max_restarts": 0,
        _VALIDATION: {"epochs": 1},
    }


def _print_result(result: CheckResult) -> None:
    for line in (*result.compared, *(f"note: {note}" for note in result.notes)):
        print_line(line)
    times = ", ".join(f"{seconds:.1f}" for seconds in result.kills)
    print_line(
        f"uninterrupted: {result.seconds[0]:.1f} s; with {len(result.kills)} kills: "
        f"{result.seconds[1]:.1f} s{f' (killed {times} s after a start)' if times else ''}"
    )
    if result.is_equal:
        print_line(_EXACT if result.kills else _EQUAL, style="green")
        return
    print_line(f"resume is not exact: {result.difference}", style="red")
    for line in result.details:
        print_line(f"  {line}")
