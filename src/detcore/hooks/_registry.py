"""Check and merge the registrations of plugins, without letting one replace another."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from detcore.contract import hook_values as types
from detcore.contract.values import Framework
from detcore.hooks._entry import PluginEntry, is_reserved
from detcore.hooks._problem import PluginProblem, plugin_problem, switch_off_command

__all__ = ["KINDS", "Kind", "Registration", "check_items", "command_clash", "settle", "targets_of"]

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One register hook, and its valid results.

    Attributes:
        noun: Name of the registered values, for messages.
        hook: Name of the hook.
        load_type: Returns the class of its values; called only if there is a value.
        targets: Fields that are ``"module:attribute"``.
        optional_targets: Fields that are ``"module:attribute"``, None or empty.
        texts: Fields that are tuples of strings.
        sentences: Fields that are strings.
    """

    noun: str
    hook: str
    load_type: Callable[[], type]
    targets: tuple[str, ...] = ()
    optional_targets: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()
    sentences: tuple[str, ...] = ()


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One value that one plugin registered."""

    entry: PluginEntry
    item: Any  # a Framework, StorageType, LauncherType, ... or click.Command; see `KINDS`

    @property
    def name(self) -> str:
        """Its name."""
        return str(self.item.name)

    def keys(self, noun: str) -> list[tuple[str, str]]:
        """Return the names that no other plugin may register as well."""
        keys = [(noun, self.name)]
        if isinstance(self.item, types.StorageType):
            keys += [("URL scheme", scheme) for scheme in self.item.schemes]
        return keys


def _load_command_type() -> type:
    import click

    return click.Command


KINDS = {
    kind.noun: kind
    for kind in (
        Kind(
            noun="framework",
            hook="detcore_register_framework",
            load_type=lambda: Framework,
            targets=("trial_class", "context_class", "controller"),
            optional_targets=("prepare_worker", "load_checkpoint", "native_init"),
            texts=("requires",),
            sentences=("inexact_resume",),
        ),
        Kind(
            noun="storage type",
            hook="detcore_register_storage",
            load_type=lambda: types.StorageType,
            targets=("settings", "backend"),
            texts=("schemes",),
        ),
        Kind(
            noun="launcher",
            hook="detcore_register_launcher",
            load_type=lambda: types.LauncherType,
            targets=("launcher",),
            optional_targets=("settings",),
        ),
        Kind(
            noun="rendezvous",
            hook="detcore_register_rendezvous",
            load_type=lambda: types.RendezvousType,
            targets=("service",),
        ),
        Kind(
            noun="searcher",
            hook="detcore_register_searcher",
            load_type=lambda: types.SearcherType,
            targets=("method",),
            optional_targets=("settings",),
        ),
        Kind(
            noun="failure action",
            hook="detcore_register_failure_action",
            load_type=lambda: types.FailureActionType,
            targets=("function",),
        ),
        Kind(noun="command", hook="detcore_register_commands", load_type=_load_command_type),
        Kind(
            noun="router",
            hook="detcore_register_routes",
            load_type=lambda: types.RoutesType,
            targets=("make_router",),
        ),
        Kind(
            noun="set of tables",
            hook="detcore_register_tables",
            load_type=lambda: types.TablesType,
            targets=("migrations",),
            texts=("revisions",),
        ),
    )
}


def check_items(
    kind: Kind, entry: PluginEntry, returned: Iterable[object], place: str
) -> tuple[list[Registration], list[PluginProblem]]:
    """Check the result of one plugin's hook.

    Args:
        kind: The hook.
        entry: The plugin.
        returned: One element per implementation of the hook: a value, or a list of values.
        place: Location of the hook's definition, for messages.

    Returns:
        The valid values, and a problem for each of the others.
    """
    registrations = []
    problems = []
    wanted = kind.load_type()
    for value in returned:
        for item in value if isinstance(value, (list, tuple)) else [value]:
            if not isinstance(item, wanted):
                problems.append(
                    plugin_problem(
                        "wrong-type",
                        entry,
                        f"{kind.hook} returned {_shorten(item)}, which is no {wanted.__name__} "
                        f"({place})",
                    )
                )
                continue
            faults = list(_faults(kind, item))
            problems += [
                plugin_problem("bad-value", entry, f"{kind.hook} returned a {kind.noun} whose "
                               f"{fault} ({place})")
                for fault in faults
            ]  # fmt: skip
            if not faults:
                registrations.append(Registration(entry=entry, item=item))
    return registrations, problems


def _faults(kind: Kind, item: Any) -> Iterable[str]:
    if not _is_text(item.name, _NAME):
        yield f"name is {item.name!r}, not lower-case letters, digits, '-' and '_'"
    for field in (*kind.targets, *kind.optional_targets):
        value = getattr(item, field)
        if value in (None, "") and field in kind.optional_targets:
            continue
        if not _is_text(value, _TARGET):
            yield f"{field} is {_shorten(value)}, not a text like 'module:attribute'"
    for field in kind.sentences:
        if not isinstance(getattr(item, field), str):
            yield f"{field} is {_shorten(getattr(item, field))}, not a text"
    for field in kind.texts:
        value = getattr(item, field)
        pattern = _SCHEME if field == "schemes" else None
        if not isinstance(value, tuple) or not all(_is_text(text, pattern) for text in value):
            wanted = "URL schemes" if pattern else "names"
            yield f"{field} is {_shorten(value)}, not a tuple of {wanted}"


def _is_text(value: object, pattern: re.Pattern[str] | None) -> bool:
    return isinstance(value, str) and (pattern is None or pattern.fullmatch(value) is not None)


def _shorten(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def settle(
    kind: Kind, registrations: Sequence[Registration], reserved: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Registration], list[PluginProblem]]:
    """Drop names that were registered twice, except built-in ones.

    Args:
        kind: The hook.
        registrations: Registrations of all plugins.
        reserved: Names, each with the distributions that may register it. Several register parts of
            one group, which is built in.
    """
    claims: dict[tuple[str, str], list[Registration]] = {}
    for registration in registrations:
        for key in registration.keys(kind.noun):
            claims.setdefault(key, []).append(registration)
    problems = []
    out: set[int] = set()
    for (noun, name), rivals in claims.items():
        barred = [rival for rival in rivals if is_reserved(name, rival.entry, reserved)]
        out.update(map(id, barred))
        problems += [command_clash(rival.entry, name, reserved[name]) for rival in barred]
        rivals = [rival for rival in rivals if rival not in barred]
        if len(rivals) > 1 and len(reserved.get(name, ())) < 2:
            losers = [rival for rival in rivals if not rival.entry.is_built_in]
            out.update(map(id, losers))
            problems.append(_conflict(noun, name, rivals, losers))
    kept = [registration for registration in registrations if id(registration) not in out]
    return {registration.name: registration for registration in kept}, problems


def targets_of(noun: str, item: object) -> list[tuple[str, str]]:
    """Return the fields of a registered value that name an object, with the names."""
    fields = (*KINDS[noun].targets, *KINDS[noun].optional_targets)
    return [(field, value) for field in fields if (value := getattr(item, field))]


def command_clash(entry: PluginEntry, name: str, owners: Sequence[str]) -> PluginProblem:
    """Return the problem of a plugin's command that has a reserved name.

    Args:
        entry: The plugin.
        name: The command.
        owners: The distributions that may register it; none: it is built in.
    """
    if not owners:
        told = "has the name of a built-in command; the built-in one is used"
    else:
        told = f"has the name of the command of {' and '.join(owners)}, which is used instead"
    return plugin_problem("command-clash", entry, f"its command {name!r} {told}")


def _conflict(
    noun: str, name: str, rivals: list[Registration], losers: list[Registration]
) -> PluginProblem:
    entries = list({rival.entry.name: rival.entry for rival in rivals}.values())
    last = losers[-1].entry
    if len(entries) == 1:
        return plugin_problem(
            "duplicate-registration", last, f"it registers the {noun} {name!r} twice"
        )
    consequence = "none is used" if len(losers) == len(rivals) else "the built-in one is used"
    owners = " and ".join(entry.label for entry in entries)
    return PluginProblem(
        kind="duplicate-registration",
        plugin=last.name,
        owner=owners,
        message=f"both register the {noun} {name!r}; {consequence}",
        mend=switch_off_command(last.name),
        alternative=(
            switch_off_command(losers[0].entry.name) if losers[0].entry is not last else None
        ),
    )
