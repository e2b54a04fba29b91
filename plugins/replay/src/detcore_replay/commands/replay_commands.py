"""``detcore replay`` and ``detcore diverge``."""

from __future__ import annotations

import contextlib
import random
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detcore.cli import open_records, print_json
from detcore.errors import RunError
from detcore_replay.commands.result_printing import print_check, print_divergence, to_document
from detcore_replay.diverge.first_difference import check_steps, find_divergence
from detcore_replay.recorded_runs import find_run
from detcore_replay.training.step_replay import Replayer, check_replayable

if TYPE_CHECKING:
    from detcore.cli import CliContext
    from detcore.records import Database


_EXIT_DIFFERS = 1
_DIVERGE_EXAMPLES = """
\b
Examples:
  detcore diverge 3 4
  detcore diverge 3 0d6f8a52-7f6e-4d35-9a9d-0a4f7d3b6a11     a trial and a checkpoint
  detcore diverge 3 4 --no-replay                            compare only stored digests
  detcore diverge 3 4 --json

\b
Exit codes:
  0    equal up to the last common step
  1    different; also errors
"""
_REPLAY_EXAMPLES = """
\b
Examples:
  detcore replay 3 --steps 4000:4200
  detcore replay 3 --check 5            test this machine with five random steps

\b
Exit codes:
  0    all compared steps are equal
  1    different; also errors
"""


def _read_steps(
    _ctx: click.Context, _param: click.Parameter, value: str | None
) -> tuple[int, int] | None:
    if value is None:
        return None
    first, colon, last = value.partition(":")
    if not (colon and first.isdigit() and last.isdigit() and 1 <= int(first) <= int(last)):
        raise click.BadParameter(
            f"{value!r} is not a range A:B of steps with 1 <= A <= B, such as 100:200"
        )
    return int(first), int(last)


@click.command(epilog=_DIVERGE_EXAMPLES)
@click.argument("first", metavar="A")
@click.argument("second", metavar="B")
@click.option(
    "--replay/--no-replay", "with_replay", default=True,
    help="Train steps again if stored digests do not suffice.  [default: yes]",
)  # fmt: skip
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def diverge(
    context: click.Context,
    first: str,
    second: str,
    with_replay: bool,
    as_json: bool,
) -> None:
    """Find where two runs diverge: the first different step, and the difference.

    A and B are trial ids or checkpoint UUIDs. Steps are compared by stored digests
    (reproducibility.step_digests). Then both runs are trained again in a scratch directory, from
    the checkpoint before the difference. Records and checkpoints do not change.
    """
    with _open_replayer(context.obj) as (database, replayer):
        first_run, second_run = find_run(database, first), find_run(database, second)
        divergence = find_divergence(first_run, second_run, replayer, replay=with_replay)
    if as_json:
        print_json(to_document(divergence))
    else:
        print_divergence(divergence)
    context.exit(0 if divergence.is_equal else _EXIT_DIFFERS)


@click.command(epilog=_REPLAY_EXAMPLES)
@click.argument("trial")
@click.option(
    "--steps", metavar="A:B", callback=_read_steps,
    help="Range of steps to compare, inclusive.  [default: all]",
)  # fmt: skip
@click.option("--check", type=click.IntRange(min=1), metavar="N", help="Compare N random steps.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def replay(
    context: click.Context,
    trial: str,
    steps: tuple[int, int] | None,
    check: int | None,
    as_json: bool,
) -> None:
    """Train steps of a run again, and compare them with the run.

    TRIAL is a trial id or a checkpoint UUID. The replay starts from the nearest checkpoint, in a
    scratch directory, with the code, settings and data of the run. Records and checkpoints do not
    change.
    """
    if steps is not None and check is not None:
        raise click.UsageError("--steps and --check both select steps; pass only one of them")
    with _open_replayer(context.obj) as (database, replayer):
        run = find_run(database, trial)
        check_replayable(run)
        if run.digests is None:
            raise RunError(
                f"{run.label} stored no step digests, so a replay cannot be compared with it.\n"
                "A trial records digests from its first batch on, unless "
                "reproducibility.step_digests is 0.\n"
                f"To compare it with another run, replay both:  detcore diverge {trial} OTHER"
            )
        last = run.last_step
        if steps is not None and steps[1] > last:
            raise RunError(f"step {steps[1]} does not exist: {run.label} has {last} steps.")
        ranges = [steps or (1, last)]
        if check is not None:
            sample = random.SystemRandom().sample(range(1, last + 1), min(check, last))
            ranges = [(step, step) for step in sorted(sample)]
        comparison = check_steps(run, replayer, ranges)
    if as_json:
        print_json(to_document(comparison))
    else:
        print_check(comparison)
    context.exit(0 if comparison.is_equal else _EXIT_DIFFERS)


@contextlib.contextmanager
def _open_replayer(obj: CliContext) -> Iterator[tuple[Database, Replayer]]:
    if obj.master is not None:
        raise RunError(
            f"the records of {obj.master} do not include the files of its trials.\n"
            "Digests and code are in DETCORE_HOME of the machine that trained.\n"
            "Run the command there, without DETCORE_MASTER."
        )
    with (
        open_records(obj) as database,
        tempfile.TemporaryDirectory(prefix="detcore-replay-") as scratch,
    ):
        replayer = Replayer(obj, database, Path(scratch))
        with contextlib.closing(replayer):
            yield database, replayer
