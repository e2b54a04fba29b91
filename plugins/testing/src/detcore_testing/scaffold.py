"""``detcore plugin new``: create a distribution with a working example plugin."""

from __future__ import annotations

import dataclasses
import importlib.util
import keyword
import re
import string
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

import click

from detcore.errors import InvalidArgumentError

if TYPE_CHECKING:
    from detcore.cli import CliContext
    from detcore.plugins import PluginManager, PluginProblem


# Distribution summaries by plugin kind.
_SUMMARIES = {
    "framework": "{title} trials for detcore.",
    "storage": "Checkpoint storage {title} for detcore.",
    "searcher": "Search method {title} for detcore.",
    "launcher": "Launcher {title} for detcore.",
}
# `PluginManager` methods that list registrations, by plugin kind.
_REGISTRIES = {
    "framework": "frameworks",
    "storage": "storage_types",
    "searcher": "searchers",
    "launcher": "launchers",
}
_SUFFIX = ".tmpl"
_PACKAGE = "package"  # directory in the templates that is renamed to the package
# PEP 508 names. Class names and URL schemes must start with a letter.
_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_MAX_NAME_LENGTH = 24


@click.command("new")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(_SUMMARIES)),
    default="framework",
    show_default=True,
    help="Kind of plugin.",
)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="DIRECTORY",
    help="Parent of the new directory detcore-NAME. [default: current directory]",
)
@click.pass_obj
def new_plugin(obj: CliContext, name: str, kind: str, into: Path) -> None:
    """Create a distribution with a working example plugin NAME.

    The distribution contains entry points, the hook, a one-page implementation, and tests that
    check the contract of the plugin kind. All tests pass before you change the code.
    """
    names = parse_name(name)
    check_free(names, kind, obj.plugin_manager(on_problem=_keep_quiet))
    directory = into / names.distribution
    _make_directory(directory)
    count = 0
    for path, text in _render_templates(names, kind):
        target = directory / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        count += 1
    click.echo(f"Created {directory} with {count} files: a working example {kind}.")
    click.echo("Next steps:")
    for command, meaning in _list_next_steps(directory, names, kind):
        click.echo(f"  {command:<36} {meaning}".rstrip())


def _keep_quiet(_problem: PluginProblem) -> None:
    """Ignore faults of other plugins."""


def _make_directory(directory: Path) -> None:
    try:
        directory.mkdir(parents=True)
    except FileExistsError:
        raise InvalidArgumentError(
            f"{directory} already exists, and no file was changed.\n"
            "Remove it, choose another name, or choose another parent directory (--into)."
        ) from None
    except OSError as error:
        raise InvalidArgumentError(
            f"cannot create {directory}: {error.strerror}.\n"
            "Choose another parent directory (--into)."
        ) from error


def _render_templates(names: PluginNames, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the relative path and content of each file."""
    values = _template_values(names, kind)
    for source in ("common", kind):
        directory = Path(__file__).parent / "templates" / source
        for path in sorted(directory.rglob(f"*{_SUFFIX}")):
            text = string.Template(path.read_text(encoding="utf-8")).substitute(values)
            parts = [
                names.package if part == _PACKAGE else part
                for part in path.relative_to(directory).parts
            ]
            yield "/".join(parts).removesuffix(_SUFFIX), text


def _template_values(names: PluginNames, kind: str) -> Mapping[str, str]:
    """Return the values of the template placeholders."""
    from detcore import __version__

    major, minor = map(int, __version__.split(".")[:2])
    # Before 1.0 every minor version may break the API.
    next_breaking = f"0.{minor + 1}" if major == 0 else f"{major + 1}"
    library = "numpy>=1.23.5" if kind == "framework" else "pydantic>=2.5"
    title = " ".join(names.plugin.split("_")).capitalize()
    return {
        "plugin": names.plugin,
        "distribution": names.distribution,
        "package": names.package,
        "cls": names.class_prefix,
        "scheme": names.scheme,
        "title": title,
        "summary": _SUMMARIES[kind].format(title=title),
        "dependencies": f'"detcore>={major}.{minor},<{next_breaking}", "{library}"',
    }


def _list_next_steps(directory: Path, names: PluginNames, kind: str) -> Iterator[tuple[str, str]]:
    yield f"cd {directory}", ""
    yield "pip install -e '.[testing]'", "install into detcore's environment"
    yield "pytest", f"check the contract of a {kind}"
    yield "detcore plugins doctor", "check that detcore finds the plugin"
    if kind == "framework":
        yield "detcore run tests/model/const.yaml", "train the example"
    yield f"$EDITOR src/{names.package}", "replace the example (docs/writing-a-plugin.md)"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PluginNames:
    """Names derived from a plugin name.

    Attributes:
        plugin: Entry point name, also used in experiment files, such as ``"my_net"``.
        distribution: Name of the distribution, such as ``"detcore-my-net"``.
        package: Name of the Python package, such as ``"detcore_my_net"``.
        class_prefix: Prefix of class names, such as ``"MyNet"``.
        scheme: URL scheme, such as ``"my-net"``.
    """

    plugin: str
    distribution: str
    package: str
    class_prefix: str
    scheme: str


def parse_name(text: str) -> PluginNames:
    """Derive all names from a plugin name.

    Args:
        text: Name with or without a leading ``detcore-``.

    Raises:
        InvalidArgumentError: If the name is invalid, too long, or a Python keyword.
    """
    bare = re.sub(r"^detcore[-_.]+", "", text, flags=re.IGNORECASE)
    if not _NAME.fullmatch(bare):
        raise InvalidArgumentError(
            f"invalid plugin name {text!r}.\n"
            "The name is used for a distribution, a package, a class and a URL scheme.\n"
            "It must start with a letter, end with a letter or digit, and contain only letters, "
            "digits, '-', '_' and '.', for example: detcore plugin new my-net"
        )
    if len(bare) > _MAX_NAME_LENGTH:
        raise InvalidArgumentError(
            f"plugin name {text!r} has {len(bare)} characters; the maximum is {_MAX_NAME_LENGTH}.\n"
            "Users type the name in experiment files. Choose a shorter name."
        )
    words = [word for word in re.split(r"[-_.]+", bare) if word]
    plugin = "_".join(words).lower()
    if keyword.iskeyword(plugin):
        raise InvalidArgumentError(
            f"{text!r} is a Python keyword and cannot be a plugin name.\n"
            f"Choose another name, for example: detcore plugin new my-{plugin}"
        )
    return PluginNames(
        plugin=plugin,
        distribution="detcore-" + "-".join(words).lower(),
        package=f"detcore_{plugin}",
        class_prefix="".join(word[0].upper() + word[1:] for word in words),
        scheme="-".join(words).lower(),
    )


def check_free(names: PluginNames, kind: str, plugins: PluginManager) -> None:
    """Check that no plugin, registration or package already uses a name.

    Args:
        names: Names derived from the plugin name.
        kind: ``"framework"``, ``"storage"``, ``"searcher"`` or ``"launcher"``.
        plugins: The installed plugins.

    Raises:
        InvalidArgumentError: If a name is in use.
    """
    name = names.plugin
    installed = {entry.name for entry in plugins.index()}
    if name in installed:
        conflict = f"a plugin named {name!r} is already installed"
    elif name in getattr(plugins, _REGISTRIES[kind])():
        conflict = f"a {kind} named {name!r} is already registered"
    elif importlib.util.find_spec(names.package) is not None:
        raise InvalidArgumentError(
            f"a package named {names.package!r} is already installed.\n"
            "Python imports only one package of each name. Choose another name."
        )
    else:
        return
    raise InvalidArgumentError(
        f"{conflict}.\n"
        "detcore rejects two registrations of one name. Choose another name.\n"
        "List the installed plugins with: detcore plugins list"
    )
