"""The name of a new plugin: validation, and the names derived from it."""

from __future__ import annotations

import dataclasses
import importlib.util
import keyword
import re
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from detcore.errors import InvalidArgumentError

if TYPE_CHECKING:
    from detcore.hooks import PluginManager

__all__ = ["PluginNames", "check_free", "parse_name"]

# As the packaging standards have it (PEP 508); a class and a URL scheme need a letter first.
_NAME = re.compile(r"[A-Za-z]([A-Za-z0-9._-]*[A-Za-z0-9])?")
_LONGEST = 24
# Names that an experiment file accepts without any plugin.
_KNOWN_TO_FILES = {
    "storage": frozenset({"azure", "directory", "gcs", "s3", "shared_fs"}),
    "searcher": frozenset({"adaptive", "adaptive_simple", "custom", "pbt", "sync_halving"}),
}


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
    if len(bare) > _LONGEST:
        raise InvalidArgumentError(
            f"{text!r} has {len(bare)} characters; a plugin's name has {_LONGEST} at most.\n"
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
    entries = {entry.name: entry for entry in plugins.index()}
    if name in entries:
        taken = f"a plugin is called {name!r} already: {entries[name].distribution}"
    elif importlib.util.find_spec(names.package) is not None:
        taken = f"a package {names.package!r} is installed already"
    elif name in _registered(kind, plugins):
        taken = f"a {kind} is registered as {name!r} already (detcore plugins list)"
    elif name in _KNOWN_TO_FILES.get(kind, ()):
        taken = f"experiment files have a {kind} {name!r} of their own"
    elif kind == "storage" and names.scheme in _url_schemes(plugins):
        taken = f"URLs that begin with {names.scheme}:// mean another storage already"
    else:
        return
    raise InvalidArgumentError(
        f"{taken}.\nTwo of one name would both be refused. Choose another name."
    )


def _registered(kind: str, plugins: PluginManager) -> Mapping[str, object]:
    ask: Mapping[str, Callable[[], Mapping[str, object]]] = {
        "framework": plugins.frameworks,
        "storage": plugins.storage_types,
        "searcher": plugins.searchers,
        "launcher": plugins.launchers,
    }
    return ask[kind]()


def _url_schemes(plugins: PluginManager) -> set[str]:
    from fsspec import available_protocols

    ours = {scheme for each in plugins.storage_types().values() for scheme in each.schemes}
    return ours | set(available_protocols())
