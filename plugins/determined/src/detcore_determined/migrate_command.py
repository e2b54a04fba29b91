"""``detcore migrate``: rewrite code and experiment files that were written for Determined."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import TYPE_CHECKING

import click

if TYPE_CHECKING:
    from detcore_determined.migrate import FileReport


_EXIT_WOULD_CHANGE = 1
_EXAMPLES = """
\b
Examples:
  detcore migrate --diff model_def.py const.yaml    show the changes
  detcore migrate .                                 rewrite everything below this folder
  detcore migrate --check .                         for CI: is there anything left to rewrite?

\b
Exit codes:
  0    done; with --check or --diff: nothing would change
  1    with --check or --diff: something would change; or a file could not be read or written
"""


@click.command("migrate", epilog=_EXAMPLES)
@click.argument(
    "paths", nargs=-1, required=True, metavar="FILE...", type=click.Path(path_type=Path)
)
@click.option("--check", is_flag=True, help="Write nothing; exit code 1 if something would change.")
@click.option("--diff", "show_diff", is_flag=True, help="Like --check, and print the changes.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object on stdout.")
@click.pass_context
def migrate(
    context: click.Context, paths: tuple[Path, ...], check: bool, show_diff: bool, as_json: bool
) -> None:
    """Rewrite Python modules and experiment files from Determined's names to detcore's.

    FILE is a file or a directory. Imports and the imported names are replaced. All other text stays
    identical. Names without a counterpart are not changed but reported, with their positions and
    instructions. Running the command again changes nothing.
    """
    from detcore_determined.migrate import find_files, migrate_file

    is_dry = check or show_diff
    reports = [migrate_file(path, write=not is_dry) for path in find_files(paths)]
    if as_json:
        _print_json(reports, is_dry=is_dry)
    else:
        _print_reports(reports, is_dry=is_dry, show_diff=show_diff)
    is_wrong = any(report.is_failed or (is_dry and report.is_changed) for report in reports)
    context.exit(_EXIT_WOULD_CHANGE if is_wrong else 0)


def _print_reports(reports: list[FileReport], *, is_dry: bool, show_diff: bool) -> None:
    """Print diffs on stdout, the findings of each file, and a summary."""
    from detcore_determined.migrate.tensorflow_names import needs_old_tensorflow

    verb = "would change" if is_dry else "changed"
    for report in reports:
        if show_diff:
            click.echo(report.diff, nl=False)
        elif report.is_changed:
            click.echo(f"{verb} {report.path} ({_count_of(report.num_changes, 'place')})")
        for finding in report.findings:
            click.echo(f"{report.path}:{finding}", err=show_diff)
    kinds = [finding.kind for report in reports for finding in report.findings]
    num_changed = sum(report.is_changed for report in reports)
    words = [f"{_count_of(len(reports), 'file')}", f"{num_changed} {verb}"]
    words.append(f"{_count_of(kinds.count('left'), 'place')} left to do by hand")
    if kinds.count("note"):
        words.append(_count_of(kinds.count("note"), "note"))
    if kinds.count("error"):
        words.append(_count_of(kinds.count("error"), "error"))
    click.echo(", ".join(words), err=True)
    if any(needs_old_tensorflow(finding) for report in reports for finding in report.findings):
        click.echo(
            'as it is, the code needs TensorFlow 2.15: pip install "tensorflow==2.15.*"', err=True
        )


def _print_json(reports: list[FileReport], *, is_dry: bool) -> None:
    document = {
        "written": not is_dry,
        "files": [
            {
                "path": str(report.path),
                "changed": report.is_changed,
                "num_changes": report.num_changes,
                "diff": report.diff,
                "findings": [dataclasses.asdict(finding) for finding in report.findings],
            }
            for report in reports
        ],
    }
    click.echo(json.dumps(document, indent=2))


def _count_of(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
