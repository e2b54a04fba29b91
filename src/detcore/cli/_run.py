"""``detcore run``: train an experiment, or go on with one."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

if TYPE_CHECKING:
    from detcore.cli._context import CliContext
    from detcore.config import LoadedConfig
    from detcore.runner import ExperimentResult

__all__ = ["run"]

_EXIT_INTERRUPTED = 130
_EXAMPLES = """
\b
Examples:
  detcore run const.yaml                      train the code beside const.yaml
  detcore run const.yaml model/ --test        one batch, one validation, one checkpoint
  detcore run const.yaml --set searcher.max_length.epochs=2
  detcore run const.yaml --slots 2            in two worker processes
  detcore run adaptive.yaml --max-slots 4     a search, with up to four slots in use
  detcore run --resume 3                      go on with experiment 3

\b
Exit codes:
  0    the experiment is complete
  1    it failed, or was canceled
  2    the command or the experiment file is wrong
  75   interrupted after a checkpoint; resume it with --resume
  130  interrupted twice: ended without a checkpoint
"""


@click.command(epilog=_EXAMPLES)
@click.argument(
    "config", required=False, type=click.Path(path_type=Path, dir_okay=False), metavar="CONFIG.yaml"
)
@click.argument(
    "model_dir",
    required=False,
    type=click.Path(path_type=Path, file_okay=False, exists=True),
    metavar="[MODEL_DIR]",
)
@click.option("--resume", type=int, metavar="ID", help="Go on with an experiment.")
@click.option(
    "--test", "test_mode", is_flag=True, help="One batch, one validation, one checkpoint."
)
@click.option("--json", "as_json", is_flag=True, help="End with one JSON object on stdout.")
@click.option(
    "--set", "settings", multiple=True, metavar="KEY=VALUE", help="Override a setting of the file."
)
@click.option(
    "--slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Train in N worker processes (resources.slots_per_trial).",
)
@click.option(
    "--max-slots",
    type=click.IntRange(min=1),
    metavar="N",
    help="Slots for all trials of a search together (resources.max_slots).  [default: the "
    "accelerators of this machine, else one trial at a time]",
)
@click.pass_obj
def run(
    obj: CliContext,
    config: Path | None,
    model_dir: Path | None,
    resume: int | None,
    test_mode: bool,
    as_json: bool,
    settings: tuple[str, ...],
    slots: int | None,
    max_slots: int | None,
) -> None:
    """Train an experiment in this terminal, or go on with one.

    CONFIG.yaml is the experiment file; MODEL_DIR is the folder of your code, by default the
    folder of the experiment file.
    """
    if (config is None) == (resume is None):
        raise click.UsageError("give an experiment file, or --resume ID (one of the two)")
    if resume is not None and (test_mode or settings):
        raise click.UsageError("--test and --set belong to a new experiment, not to --resume")
    from detcore.runner import RunSettings, resume_experiment, start_experiment

    display = _make_display(as_json)
    run_settings = RunSettings(
        environment=obj.environment,
        plugins=obj.plugin_manager(),
        listener=display,
        max_slots=max_slots,
    )
    try:
        if config is not None:
            if slots is not None:
                settings = (*settings, f"resources.slots_per_trial={slots}")
            if max_slots is not None:
                settings = (*settings, f"resources.max_slots={max_slots}")
            loaded = _load(config, settings, obj)
            for notice in loaded.notices:
                display.notice(notice)
            folder = (model_dir or config.parent).absolute()
            result = start_experiment(loaded, folder, run_settings, test_mode=test_mode)
        else:
            result = resume_experiment(resume or 0, run_settings, slots=slots)
    finally:
        display.close()
    _conclude(result, as_json=as_json)
    raise SystemExit(_exit_code(result))


def _load(config: Path, settings: tuple[str, ...], obj: CliContext) -> LoadedConfig:
    from detcore.config import load_config, parse_set_flags

    plugins = obj.plugin_manager()
    return load_config(
        config,
        overrides=parse_set_flags(settings),
        environment=obj.environment.config_overrides,
        required=("entrypoint",),
        searchers=list(plugins.searchers()),
        storage_types={name: kind.settings for name, kind in plugins.storage_types().items()},
    )


def _make_display(as_json: bool) -> Any:
    from rich.console import Console

    from detcore.cli._display import LiveDisplay, PlainDisplay

    console = Console(stderr=as_json)
    return LiveDisplay(console) if console.is_terminal else PlainDisplay(console)


def _exit_code(result: ExperimentResult) -> int:
    from detcore.launch.worker import EXIT_COME_BACK, EXIT_ERROR

    if result.was_cut_short:
        return _EXIT_INTERRUPTED
    codes = {"COMPLETED": 0, "PAUSED": EXIT_COME_BACK}
    return codes.get(result.state.value, EXIT_ERROR)


def _conclude(result: ExperimentResult, *, as_json: bool) -> None:
    if as_json:
        # Last of all, so that a program finds it on the last line.
        summary = {
            "experiment_id": result.experiment_id,
            "state": result.state.value,
            "trials": [_plain_trial(trial) for trial in result.trials],
            "error": result.error,
        }
        click.echo(json.dumps(summary))
        return
    for line in _summary(result):
        click.echo(line)


def _plain_trial(trial: Any) -> dict[str, Any]:
    return dataclasses.asdict(trial)


def _summary(result: ExperimentResult) -> list[str]:
    lines = [f"experiment {result.experiment_id}: {result.state.value.lower()}"]
    if result.error:
        lines[0] += f": {result.error}"
    for trial in result.trials:
        best = "-" if trial.best_validation is None else f"{trial.best_validation:.4g}"
        lines.append(
            f"  trial {trial.trial_id}: {trial.steps_completed} batches, "
            f"best {result.metric} {best}, latest checkpoint {trial.latest_checkpoint or '-'}"
        )
    state = result.state.value
    if state == "PAUSED":
        lines.append(f"go on with it:  detcore run --resume {result.experiment_id}")
    elif state == "ERROR" and any(trial.latest_checkpoint for trial in result.trials):
        lines.append(
            f"go on from the latest checkpoint:  detcore run --resume {result.experiment_id}"
        )
    elif state == "COMPLETED":
        lines.append(f"look at it:  detcore experiment describe {result.experiment_id}")
    return lines
