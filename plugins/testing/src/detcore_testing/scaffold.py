"""``detcore plugin new``: a distribution with a plugin that works, to be changed."""

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


# Summary of a distribution by its kind.
_SUMMARIES = {
    "framework": "{title} trials for detcore.",
    "storage": "Checkpoints of detcore in {title}.",
    "searcher": "The search method {title} for detcore.",
    "launcher": "The launcher {title} for detcore.",
}
# Methods of `PluginManager` that list registrations, by kind.
_REGISTRIES = {
    "framework": "frameworks",
    "storage": "storage_types",
    "searcher": "searchers",
    "launcher": "launchers",
}
_SUFFIX = ".tmpl"
_PACKAGE = "package"  # name of the package's folder in the templates
# As the packaging standards have it (PEP 508); a class and a URL scheme need a letter first.
_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_MAX_NAME_LENGTH = 24


@click.command("new")
@click.argument("name")
@click.option(
    "--kind",
    type=click.Choice(list(_SUMMARIES)),
    default="framework",
    show_default=True,
    help="What it adds to detcore.",
)
@click.option(
    "--into",
    type=click.Path(file_okay=False, path_type=Path),
    default=Path(),
    metavar="FOLDER",
    help="Where the folder detcore-NAME is made; default: here.",
)
@click.pass_obj
def new_plugin(obj: CliContext, name: str, kind: str, into: Path) -> None:
    """Write a distribution with a plugin NAME that works: change it into yours.

    It has the entry points, the hook, an implementation of one page, and tests that check it
    against the contract of its kind. They pass as they are.
    """
    names = parse_name(name)
    check_free(names, kind, obj.plugin_manager(on_problem=_keep_quiet))
    folder = into / names.distribution
    _make_folder(folder)
    count = 0
    for path, text in _files(names, kind):
        target = folder / path
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text, encoding="utf-8")
        count += 1
    click.echo(f"{folder}: {count} files; a {kind} that works, to be changed")
    click.echo("What to type next:")
    for command, meaning in _next_steps(folder, names, kind):
        click.echo(f"  {command:<36}{meaning}")


def _keep_quiet(_problem: PluginProblem) -> None:
    """Faults of other plugins are no matter of a new one."""


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True)
    except FileExistsError:
        raise InvalidArgumentError(
            f"{folder} is there already.\n"
            "Nothing is written over. Remove it, choose another name, or another place (--into)."
        ) from None
    except OSError as error:
        raise InvalidArgumentError(
            f"{folder} cannot be made: {error.strerror}.\nChoose another place (--into)."
        ) from error


def _files(names: PluginNames, kind: str) -> Iterator[tuple[str, str]]:
    """Yield the files of a distribution, with their paths in its folder."""
    values = _values(names, kind)
    for source in ("common", kind):
        folder = Path(__file__).parent / "templates" / source
        for path in sorted(folder.rglob(f"*{_SUFFIX}")):
            text = string.Template(path.read_text(encoding="utf-8")).substitute(values)
            parts = path.relative_to(folder).parts
            renamed = [names.package if part == _PACKAGE else part for part in parts]
            yield "/".join(renamed).removesuffix(_SUFFIX), text


def _values(names: PluginNames, kind: str) -> Mapping[str, str]:
    """Return the values that are filled into the templates."""
    from detcore import __version__

    major, minor = map(int, __version__.split(".")[:2])
    # While the first number is 0 the second one says that something has changed.
    following = f"0.{minor + 1}" if major == 0 else f"{major + 1}"
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
        "dependencies": f'"detcore>={major}.{minor},<{following}", "{library}"',
    }


def _next_steps(folder: Path, names: PluginNames, kind: str) -> Iterator[tuple[str, str]]:
    yield f"cd {folder}", ""
    yield "pip install -e '.[testing]'", "into the environment of detcore"
    yield "pytest", "the contract of its kind, held against it"
    yield "detcore plugins doctor", "whether detcore finds it"
    if kind == "framework":
        yield "detcore run tests/model/const.yaml", "its example"
    yield f"$EDITOR src/{names.package}", "make it yours; docs/writing-a-plugin.md"


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class PluginNames:
    """Everything that is named after a plugin.

    Attributes:
        plugin: Name in the entry point and in experiment files, such as ``"my_net"``.
        distribution: Name that pip installs, such as ``"detcore-my-net"``.
        package: Name that Python imports, such as ``"detcore_my_net"``.
        class_prefix: How its classes begin, such as ``"MyNet"``.
        scheme: Of its URLs, such as ``"my-net"``.
    """

    plugin: str
    distribution: str
    package: str
    class_prefix: str
    scheme: str


def parse_name(text: str) -> PluginNames:
    """Return the names that are derived from a plugin's name.

    Args:
        text: As it was typed; a leading ``detcore-`` may be left out.

    Raises:
        InvalidArgumentError: If it cannot be the name of a distribution, or makes no good names.
    """
    bare = re.sub(r"^detcore[-_.]+", "", text, flags=re.IGNORECASE)
    if not _NAME.fullmatch(bare):
        raise InvalidArgumentError(
            f"{text!r} cannot be the name of a plugin.\n"
            "A distribution, a package, a class and a URL scheme are named after it.\n"
            "It begins with a letter, ends with a letter or digit, and has letters, digits and "
            "'-', '_', '.' in between: detcore plugin new my-net"
        )
    if len(bare) > _MAX_NAME_LENGTH:
        raise InvalidArgumentError(
            f"{text!r} has {len(bare)} characters; the maximum is {_MAX_NAME_LENGTH}.\n"
            "It is typed into experiment files. Choose a shorter one."
        )
    words = [word for word in re.split(r"[-_.]+", bare) if word]
    plugin = "_".join(words).lower()
    if keyword.iskeyword(plugin):
        raise InvalidArgumentError(
            f"{text!r} is a word of the Python language, and no good name for anything in it.\n"
            f"Choose another, such as: detcore plugin new my-{plugin}"
        )
    return PluginNames(
        plugin=plugin,
        distribution="detcore-" + "-".join(words).lower(),
        package=f"detcore_{plugin}",
        class_prefix="".join(word[0].upper() + word[1:] for word in words),
        scheme="-".join(words).lower(),
    )


def check_free(names: PluginNames, kind: str, plugins: PluginManager) -> None:
    """Make sure that nothing has the name already, where it would have to be shared.

    Args:
        names: The names derived from the plugin's name.
        kind: ``"framework"``, ``"storage"``, ``"searcher"`` or ``"launcher"``.
        plugins: Those that are installed.

    Raises:
        InvalidArgumentError: If the name is taken.
    """
    name = names.plugin
    installed = {entry.name for entry in plugins.index()}
    if name in installed:
        taken = f"a plugin is called {name!r} already"
    elif name in getattr(plugins, _REGISTRIES[kind])():
        taken = f"a {kind} is registered as {name!r} already"
    elif importlib.util.find_spec(names.package) is not None:
        raise InvalidArgumentError(
            f"a package {names.package!r} can be imported already.\n"
            "Only one of two packages with the same name is imported. Choose another name."
        )
    else:
        return
    raise InvalidArgumentError(
        f"{taken} (detcore plugins list).\n"
        "Two of one name would both be refused. Choose another name."
    )
