"""``detcore storage``: test a store before using it for checkpoints."""

from __future__ import annotations

import contextlib
import itertools
import sys
import time
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detcore.cli import (
    Column,
    CommandGroup,
    print_fields,
    print_json,
    print_line,
    print_table,
)
from detcore.errors import ConfigError

if TYPE_CHECKING:
    from detcore.cli import CliContext
    from detcore.storage import Capabilities, StorageBackend
    from detcore_storage.store_check import Finding
    from detcore_testing.torture import CrashPoint, TortureReport


_EXIT_FAULTY = 1

_EXAMPLES = """
\b
Examples:
  detcore storage check s3://bucket/prefix
  detcore storage check experiment.yaml      its checkpoint_storage
  detcore storage torture /mnt/checkpoints
  detcore storage torture experiment.yaml --points 100

\b
Exit codes:
  0    the storage can hold checkpoints
  1    the storage cannot hold checkpoints
"""


@click.group("storage", cls=CommandGroup, epilog=_EXAMPLES)
def storage_group() -> None:
    """Test a checkpoint storage."""


@storage_group.command("check")
@click.argument("where", metavar="URL|PATH|FILE.yaml")
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def run_check(ctx: click.Context, where: str, as_json: bool) -> None:
    """Write, read, list, overwrite and delete in a storage, and print its capabilities.

    All files are written below a new prefix, which is deleted afterwards.
    """
    from detcore_storage.store_check import check_storage

    with _open_target(ctx.obj, where) as storage:
        findings = list(check_storage(storage))
        capabilities = storage.capabilities
    is_faulty = any(finding.is_needed and not finding.is_ok for finding in findings)
    if as_json:
        print_json(_as_json(storage.url, capabilities, findings))
    else:
        print_fields({"storage": storage.url})
        rows = [[finding.name, _format_result(finding), finding.text] for finding in findings]
        print_table([Column("tried"), Column("result"), Column("seen", wrap=True)], rows)
        for line in _describe_guarantees(capabilities, findings):
            print_line(line)
    if is_faulty:
        ctx.exit(_EXIT_FAULTY)


@storage_group.command("torture")
@click.argument("where", metavar="URL|PATH|FILE.yaml")
@click.option(
    "--points",
    type=click.IntRange(min=1),
    metavar="N",
    help="Number of crash points to try, spread evenly.  [default: all]",
)
@click.option("--json", "as_json", is_flag=True, help="Print a JSON object.")
@click.pass_context
def run_torture(ctx: click.Context, where: str, points: int | None, as_json: bool) -> None:
    """Stop processes that save, delete, prune, register and repair at every operation.

    After each stop the leftovers are cleaned up and the checkpoint is restored. It must be either
    the old or the new checkpoint. This sends some ten thousand requests below a new prefix, which
    is deleted afterwards.
    """
    try:
        from detcore_testing.torture import torture_storage
    except ModuleNotFoundError as error:
        raise ConfigError(
            "'detcore storage torture' is part of detcore-testing, which is not installed.\n"
            "Install it with: pip install 'detcore[testing]'"
        ) from error

    start = time.monotonic()
    progress = _Progress()
    with _open_target(ctx.obj, where, below=f"detcore-torture-{uuid.uuid4().hex}") as storage:
        url = storage.url
        report = torture_storage(storage, points=points, on_point=progress.show_point)
    progress.clear_line()
    seconds = time.monotonic() - start
    if as_json:
        losses = [*itertools.chain.from_iterable(report.losses.values())]
        print_json({"url": url, "points": report.points, "totals": report.totals,
                    "losses": losses, "seconds": round(seconds, 1)})  # fmt: skip
    else:
        _print_report(report, seconds)
    if report.losses:
        ctx.exit(_EXIT_FAULTY)


def _print_report(report: TortureReport, seconds: float) -> None:
    print_table(
        [Column("scenario"), Column("crash points", align="right"), Column("of", align="right"),
         Column("losses", align="right")],
        [
            [name, str(count), str(report.totals[name]),
             str(len(report.losses.get(name, [])))]
            for name, count in report.points.items()
        ],
    )  # fmt: skip
    losses = [*itertools.chain.from_iterable(report.losses.values())]
    for loss in losses:
        print_line(loss)
    tried, total = sum(report.points.values()), sum(report.totals.values())
    print_line(
        f"{tried} of {total} crash points tried in {seconds:.0f} s: "
        + (f"LOSSES at {len(losses)}" if losses else "nothing was lost")
    )


class _Progress:
    """Displays the number of tried crash points on a terminal."""

    def __init__(self) -> None:
        self._count = 0
        self._is_shown = sys.stderr.isatty()

    def show_point(self, scenario: str, point: CrashPoint) -> None:
        """Display the next crash point."""
        self._count += 1
        if self._is_shown:
            click.echo(f"\r\x1b[K{self._count}: {scenario}, {point}", nl=False, err=True)

    def clear_line(self) -> None:
        """Clear the line."""
        if self._is_shown:
            click.echo("\r\x1b[K", nl=False, err=True)


@contextlib.contextmanager
def _open_target(obj: CliContext, where: str, below: str = "") -> Iterator[StorageBackend]:
    from detcore.storage import open_storage

    spec: str | Mapping[str, Any] | None = where
    if where.endswith((".yaml", ".yml")) and "://" not in where:
        spec = _read_spec(Path(where))
    if below:
        spec = _add_prefix(spec, below, obj)
    storage = open_storage(spec, home=obj.environment.home, plugins=obj.plugin_manager())
    try:
        yield storage
    finally:
        if below:
            storage.delete(entry.key for entry in storage.list())
            root = storage.direct_path("")
            if root is not None and root.is_dir():
                root.rmdir()
        storage.close()


def _read_spec(path: Path) -> str | Mapping[str, Any] | None:
    import yaml

    try:
        content = yaml.safe_load(path.read_bytes())
    except (OSError, yaml.YAMLError) as error:
        raise ConfigError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise ConfigError(
            f"{path} is not an experiment file: it contains a {type(content).__name__}"
        )
    spec: str | Mapping[str, Any] | None = content.get("checkpoint_storage")
    return spec


def _add_prefix(
    spec: str | Mapping[str, Any] | None, below: str, obj: CliContext
) -> str | Mapping[str, Any]:
    """Return the specification of a subdirectory."""
    if spec is None:
        spec = str(obj.environment.home.absolute() / "checkpoints")
    if isinstance(spec, str):
        return f"{spec.rstrip('/')}/{below}"
    if spec.get("type") == "directory":
        return {
            "type": "shared_fs", "host_path": spec.get("container_path"), "storage_path": below
        }  # fmt: skip
    field = "storage_path" if spec.get("type") == "shared_fs" else "prefix"
    return {**spec, field: "/".join(part for part in (spec.get(field), below) if part)}


def _format_result(finding: Finding) -> str:
    if finding.is_ok:
        return "ok"
    return "FAILED" if finding.is_needed else "no"


def _describe_guarantees(capabilities: Capabilities, findings: list[Finding]) -> list[str]:
    """Return the consequences for checkpoints as lines."""
    results = {finding.name: finding.is_ok for finding in findings}
    lines = []
    failed = [finding.name for finding in findings if finding.is_needed and not finding.is_ok]
    if failed:
        lines.append(f"This storage cannot hold checkpoints: {', '.join(failed)} failed.")
        return lines
    lines.append("This storage can hold checkpoints.")
    if results.get("conditional put") and results.get("conditional put, raced"):
        lines.append(
            "If two processes write the same checkpoint, one succeeds and the other gets an error."
        )
    else:
        lines.append(
            "It cannot guarantee an error if two processes write the same checkpoint. Names are "
            "random, so this only concerns processes that were given the same name."
        )
    if not capabilities.durable:
        lines.append("It cannot guarantee that new files survive a power cut.")
    if not capabilities.fork_safe:
        lines.append("It must not be used in a process that was forked after using it.")
    return lines


def _as_json(url: str, capabilities: Capabilities, findings: list[Finding]) -> dict[str, object]:
    return {
        "url": url,
        "fork_safe": capabilities.fork_safe,
        "durable": capabilities.durable,
        "findings": [
            {
                "name": finding.name,
                "ok": finding.is_ok,
                "needed": finding.is_needed,
                "text": finding.text,
            }
            for finding in findings
        ],
    }
