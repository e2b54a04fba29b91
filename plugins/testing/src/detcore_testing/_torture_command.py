"""``detcore storage torture``: stop processes at every operation on a storage."""

from __future__ import annotations

import sys
import time
import uuid
from typing import TYPE_CHECKING

import click

from detcore.cli import Column, open_named_storage, print_json, print_line, print_table

if TYPE_CHECKING:
    from detcore_testing.torture import CrashPoint, TortureReport

__all__ = ["torture"]


@click.command("torture")
@click.argument("where", metavar="URL|PATH|FILE.yaml")
@click.option(
    "--points",
    type=click.IntRange(min=1),
    metavar="N",
    help="Try N crash points, spread evenly over all; default: every one.",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def torture(ctx: click.Context, where: str, points: int | None, as_json: bool) -> None:
    """Stop processes that save, delete, prune, register and repair at every operation.

    After each stop the leftovers are settled, and the checkpoint is restored: it must be the old or
    the new one. This takes some ten thousand requests, below a new prefix, which is removed again.
    """
    from detcore_testing.torture import torture_storage

    start = time.monotonic()
    progress = _Progress()
    with open_named_storage(ctx.obj, where, below=f"detcore-torture-{uuid.uuid4().hex}") as storage:
        url = storage.url
        report = torture_storage(storage, points=points, on_point=progress.step)
    progress.clear()
    seconds = time.monotonic() - start
    if as_json:
        losses = [str(loss) for loss in report.losses]
        print_json({"url": url, "points": report.points, "totals": report.totals,
                    "losses": losses, "seconds": round(seconds, 1)})  # fmt: skip
    else:
        _print_report(report, seconds)
    if report.losses:
        ctx.exit(1)


def _print_report(report: TortureReport, seconds: float) -> None:
    print_table(
        [Column("scenario"), Column("crash points", align="right"), Column("of", align="right"),
         Column("losses", align="right")],
        [
            [name, str(count), str(report.totals[name]),
             str(sum(loss.scenario == name for loss in report.losses))]
            for name, count in report.points.items()
        ],
    )  # fmt: skip
    for loss in report.losses:
        print_line(str(loss))
    tried, total = sum(report.points.values()), sum(report.totals.values())
    print_line(
        f"{tried} of {total} crash points tried in {seconds:.0f} s: "
        + (f"LOSSES at {len(report.losses)}" if report.losses else "nothing was lost")
    )


class _Progress:
    """How many points were tried, on a terminal."""

    def __init__(self) -> None:
        self._count = 0
        self._is_shown = sys.stderr.isatty()

    def step(self, scenario: str, point: CrashPoint) -> None:
        """Show the next one."""
        self._count += 1
        if self._is_shown:
            click.echo(f"\r\x1b[K{self._count}: {scenario}, {point}", nl=False, err=True)

    def clear(self) -> None:
        """Leave the line empty."""
        if self._is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)
