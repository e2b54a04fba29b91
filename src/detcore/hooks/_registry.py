"""Check and merge the registrations of plugins, without letting one replace another."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from detcore.contract import hook_values as types
from detcore.contract.values import Framework
from detcore.hooks._entry import (
    PluginEntry,
    PluginProblem,
    command_clash,
    is_reserved,
    plugin_problem,
    switch_off_command,
)
from detcore.hooks._load import defined_at, describe_error

if TYPE_CHECKING:
    import pluggy

__all__ = ["KINDS", "Kind", "Registration", "collect", "targets_of"]

_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One register hook, and its valid results.

    Attributes:
        noun: Name of the registered values, for messages.
        hook: Name of the hook.
        type: The class of its values; None: a command of click.
        targets: Fields that are ``"module:attribute"``, or empty if they may be left out.
        texts: Fields that are tuples of strings.
    """

    noun: str
    hook: str
    type: type | None
    targets: tuple[str, ...] = ()
    texts: tuple[str, ...] = ()

    def faults(self, item: Any) -> Iterator[str]:
        """Yield the faults of a value of this type."""
        if not _is_text(item.name, _NAME):
            yield f"name is {item.name!r}, not lower-case letters, digits, '-' and '_'"
        fields: Any = getattr(self.type, "__dataclass_fields__", {})
        for field in fields.values():
            value = getattr(item, field.name)
            fault = f"{field.name} is {_shorten(value)}, not a "
            if field.name in self.targets:
                is_left_out = value in (None, "") and field.default in (None, "")
                if not is_left_out and not _is_text(value, _TARGET):
                    yield f"{fault}text like 'module:attribute'"
            elif field.name in self.texts:
                pattern = _SCHEME if field.name == "schemes" else None
                if not isinstance(value, tuple) or not all(_is_text(t, pattern) for t in value):
                    yield f"{fault}tuple of {'URL schemes' if pattern else 'names'}"
            elif isinstance(field.default, str) and not isinstance(value, str):
                yield f"{fault}text"


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


_FRAMEWORK = (
    "trial_class", "context_class", "controller", "prepare_worker", "load_checkpoint", "native_init"
)  # fmt: skip
KINDS = {
    kind.noun: kind
    for kind in (
        Kind("framework", "detcore_register_framework", Framework, _FRAMEWORK, ("requires",)),
        Kind(
            "storage type",
            "detcore_register_storage",
            types.StorageType,
            ("settings", "backend"),
            ("schemes",),
        ),
        Kind("launcher", "detcore_register_launcher", types.LauncherType, ("launcher", "settings")),
        Kind("rendezvous", "detcore_register_rendezvous", types.RendezvousType, ("service",)),
        Kind("searcher", "detcore_register_searcher", types.SearcherType, ("method", "settings")),
        Kind(
            "failure action",
            "detcore_register_failure_action",
            types.FailureActionType,
            ("function",),
        ),
        Kind("command", "detcore_register_commands", None),
        Kind("router", "detcore_register_routes", types.RoutesType, ("make_router",)),
        Kind(
            "set of tables",
            "detcore_register_tables",
            types.TablesType,
            ("migrations",),
            ("revisions",),
        ),
    )
}


def collect(
    kind: Kind,
    callers: Iterable[tuple[PluginEntry, pluggy.HookCaller]],
    reserved: Mapping[str, Sequence[str]],
) -> tuple[dict[str, Registration], list[PluginProblem]]:
    """Call a register hook of some plugins, and check the results.

    Args:
        kind: The hook.
        callers: The plugins, each with a function to call it.
        reserved: Names, each with the distributions that may register it. Several register parts of
            one group, which is built in.

    Returns:
        The valid values by name, and a problem for each of the others.
    """
    registrations: list[Registration] = []
    problems: list[PluginProblem] = []
    for entry, hook in callers:
        try:
            returned = hook()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (isolated, and reported)
            fault = f"{kind.hook} fails: {describe_error(error)}"
            problems.append(plugin_problem("hook-failed", entry, fault))
            continue
        place = defined_at(hook.get_hookimpls()[0].function)
        for value in returned:
            for item in value if isinstance(value, (list, tuple)) else [value]:
                name, faults = _check_item(kind, item)
                problems += [
                    plugin_problem(name, entry, f"{kind.hook} returned {fault} ({place})")
                    for fault in faults
                ]
                if not faults:
                    registrations.append(Registration(entry=entry, item=item))
    settled, conflicts = _settle(kind, registrations, reserved)
    return settled, problems + conflicts


def _check_item(kind: Kind, item: object) -> tuple[str, list[str]]:
    """Return the kind of problem that a value has, and its faults."""
    wanted = kind.type
    if wanted is None:
        import click

        wanted = click.Command
    if not isinstance(item, wanted):
        return "wrong-type", [f"{_shorten(item)}, which is no {wanted.__name__}"]
    return "bad-value", [f"a {kind.noun} whose {fault}" for fault in kind.faults(item)]


def _is_text(value: object, pattern: re.Pattern[str] | None) -> bool:
    return isinstance(value, str) and (pattern is None or pattern.fullmatch(value) is not None)


def _shorten(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _settle(
    kind: Kind, registrations: Sequence[Registration], reserved: Mapping[str, Sequence[str]]
) -> tuple[dict[str, Registration], list[PluginProblem]]:
    """Drop names that were registered twice, except built-in ones."""
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
    fields = KINDS[noun].targets
    return [(field, value) for field in fields if (value := getattr(item, field))]


def _conflict(
    noun: str, name: str, rivals: list[Registration], losers: list[Registration]
) -> PluginProblem:
    entries = list({rival.entry.name: rival.entry for rival in rivals}.values())
    first, last = losers[0].entry, losers[-1].entry
    if len(entries) == 1:
        fault = f"it registers the {noun} {name!r} twice"
        return plugin_problem("duplicate-registration", last, fault)
    consequence = "none is used" if len(losers) == len(rivals) else "the built-in one is used"
    return PluginProblem(
        kind="duplicate-registration",
        plugin=last.name,
        owner=" and ".join(entry.label for entry in entries),
        message=f"both register the {noun} {name!r}; {consequence}",
        mend=switch_off_command(last.name),
        alternative=None if first is last else switch_off_command(first.name),
    )
