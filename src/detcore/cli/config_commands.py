"""``detcore config``: check experiment files, show effective values, print the schema."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from detcore.cli.cli_context import load_experiment_file
from detcore.cli.command_groups import CommandGroup
from detcore.cli.output import json_option, plain_value, printable

if TYPE_CHECKING:
    from detcore.cli.cli_context import CliContext
    from detcore.config import ExperimentFileError, LoadedConfig, Origin
    from detcore.plugins import PluginManager


_EXIT_WRONG = 2
_BUILT_IN = "detcore."
_HEADLINE = re.compile(r"^(\S.*?: |)error: (.*)", re.MULTILINE)
_UNDERLINE = re.compile(r"^( *\| +)(\^+.*)", re.MULTILINE)
_CHECK_EXAMPLES = """
\b
Examples:
  detcore config check const.yaml
  detcore config check const.yaml --set searcher.max_length.epochs=2
  detcore config check const.yaml --json      one object per mistake, for editors

\b
Exit codes:
  0    no mistakes
  2    mistakes; the report shows the line and column of each mistake
"""
_SHOW_EXAMPLES = """
\b
Examples:
  detcore config show const.yaml              every field, defaults included
  detcore config show const.yaml --origin     with the origin of each value
  DETCORE_CONFIG__MAX_RESTARTS=0 detcore config show const.yaml --origin
"""
_SCHEMA_EXAMPLES = """
\b
Example:
  detcore config schema > detcore.schema.json
Editors with a YAML language server use the schema if this is the first line of the file:
  # yaml-language-server: $schema=detcore.schema.json
"""

_file = click.argument("file", type=click.Path(path_type=Path), metavar="FILE")
_settings = click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="KEY=VALUE",
    help="Override a field of the file (repeatable).",
)


@click.group("config", cls=CommandGroup)
def config_group() -> None:
    """Check, show and describe experiment files.

    Values are searched in this order: --set, the environment variable
    DETCORE_CONFIG__SECTION__FIELD, the file, the default.
    """


@config_group.command(epilog=_CHECK_EXAMPLES)
@_file
@_settings
@json_option
@click.pass_context
def check(context: click.Context, file: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Report unknown keys, wrong values and a missing module or script.

    The entrypoint's code is looked up next to the file, but not run. A misspelled class and missing
    hyperparameters are therefore not found. Search methods and launchers of plugins are checked as
    in `detcore run`.
    """
    from detcore.config import ExperimentFileError

    try:
        loaded, plugins = _load_file(context, file, settings, file.absolute().parent)
        _check_plugin_sections(loaded, plugins)
    except ExperimentFileError as error:
        if as_json:
            click.echo(json.dumps(_list_mistakes(error), indent=2))
        else:
            click.echo(_format_report(error), err=True)
        context.exit(_EXIT_WRONG)
    if as_json:
        click.echo(json.dumps({"mistakes": [], "notices": loaded.notices}, indent=2))
        return
    for notice in loaded.notices:
        click.echo(notice, err=True)
    click.echo(f"{file}: no mistakes")


@config_group.command(epilog=_SHOW_EXAMPLES)
@_file
@_settings
@click.option("--origin", is_flag=True, help="Show the origin of each value.")
@json_option
@click.pass_context
def show(
    context: click.Context, file: Path, settings: tuple[str, ...], origin: bool, as_json: bool
) -> None:
    """Print the values of an experiment file with defaults and masked secrets."""
    import yaml

    from detcore.config import ExperimentFileError
    from detcore.config.yaml_reader import write_yaml
    from detcore.masking import mask_config

    try:
        loaded, _ = _load_file(context, file, settings)
    except ExperimentFileError as error:
        click.echo(_format_report(error), err=True)
        context.exit(_EXIT_WRONG)
    values: Any = mask_config(loaded.config.model_dump(mode="json"))
    origins = loaded.find_origins() if origin else {}
    if as_json:
        document = {"config": values, "origins": plain_value(origins)} if origin else values
        click.echo(json.dumps(document, indent=2))
        return
    text = write_yaml(values)
    if printable(text) != text:  # YAML escapes either all special characters or none
        text = write_yaml(values, allow_unicode=False)
    lines = text.splitlines()
    width = min(60, max(map(len, lines)))
    for number, name in _leaf_lines(yaml.compose(text), "") if origin else ():
        lines[number] = f"{lines[number]:<{width}}  # {_describe_origin(origins[name], name, file)}"
    click.echo(printable("\n".join(lines)))


@config_group.command(epilog=_SCHEMA_EXAMPLES)
@click.pass_obj
def schema(obj: CliContext) -> None:
    """Print the JSON Schema of experiment files, including settings of plugins."""
    from detcore.config import json_schema

    models = obj.plugin_manager().settings_models()
    click.echo(json.dumps(json_schema(models), indent=2))


def _load_file(
    context: click.Context, file: Path, settings: tuple[str, ...], code_dir: Path | None = None
) -> tuple[LoadedConfig, PluginManager]:
    obj: CliContext = context.obj
    plugins = obj.plugin_manager()
    loaded = load_experiment_file(
        file, settings, environment=obj.environment, plugins=plugins, code_dir=code_dir
    )
    return loaded, plugins


def _check_plugin_sections(loaded: LoadedConfig, plugins: PluginManager) -> None:
    """Raise an error for sections that their plugins reject.

    Raises:
        ExperimentFileError: If a plugin rejects a section.
    """
    launcher = loaded.config.launcher
    launcher_name = launcher if isinstance(launcher, str) else launcher.name
    kinds = (
        getattr(plugins.searchers().get(loaded.config.searcher.name), "method", _BUILT_IN),
        getattr(plugins.launchers().get(launcher_name), "launcher", _BUILT_IN),
    )
    if all(target.startswith(_BUILT_IN) for target in kinds):
        return
    from detcore.config import make_refusal_error
    from detcore.run import find_refusals

    refused = find_refusals(loaded, plugins)
    if refused:
        raise make_refusal_error(loaded, refused)


def _format_report(error: ExperimentFileError) -> str:
    """Return the report with colours. click removes them if the output is not a terminal."""
    report = _HEADLINE.sub(
        lambda match: (
            f"{match[1]}{click.style('error:', fg='red')} {click.style(match[2], bold=True)}"
        ),
        str(error),
    )
    return _UNDERLINE.sub(lambda match: match[1] + click.style(match[2], fg="red"), report)


def _list_mistakes(error: ExperimentFileError) -> dict[str, Any]:
    return {
        "mistakes": [
            {
                "source": item.source_name,
                "line": item.line,
                "column": item.column,
                "message": item.message,
                "suggestion": item.suggestion,
                "label": item.primary.text,
                "help": list(item.help),
                "related": [
                    {
                        "source": label.span.source.name,
                        "line": label.span.line + 1,
                        "column": label.span.column + 1,
                        "label": label.text,
                    }
                    for label in item.secondary
                ],
            }
            for item in error.diagnostics
        ],
        "notices": [],
    }


def _leaf_lines(node: Any, name: str) -> Iterator[tuple[int, str]]:
    """Yield the line of each leaf value, from 0, with its dotted name."""
    if not isinstance(node.value, list) or not node.value:
        yield node.end_mark.line, name
        return
    for index, item in enumerate(node.value):
        key, value = (item[0].value, item[1]) if isinstance(item, tuple) else (index, item)
        yield from _leaf_lines(value, f"{name}.{key}" if name else str(key))


def _describe_origin(origin: Origin, name: str, file: Path) -> str:
    if origin.source == "default" and name in ("name", "reproducibility.experiment_seed"):
        return "default: drawn for each run"
    if origin.source == "file":
        return f"{file}:{origin.line}:{origin.column}"
    if origin.source == "flag":
        return "--set"
    return origin.source
