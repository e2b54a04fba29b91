"""Import plugins, check their hooks and registrations, and isolate all failures."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import re
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import ModuleType
from typing import TYPE_CHECKING, Any, NamedTuple

from detcore.contract import hook_values as types
from detcore.contract.errors import closest_match
from detcore.contract.values import Framework
from detcore.plugins.plugin_entry import (
    PluginEntry,
    PluginProblem,
    install_command,
    is_reserved,
    join_lines,
    make_command_clash,
    make_plugin_problem,
    switch_off_command,
)

if TYPE_CHECKING:
    import pluggy


_NAME = re.compile(r"[a-z][a-z0-9_-]*")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*")
_TARGET = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


def load_plugin(entry: PluginEntry) -> tuple[Hooks | None, list[PluginProblem]]:
    """Import a plugin and check its hooks.

    Returns the hooks, or None if the plugin is unusable, and the problems found.
    """
    try:
        with _capture_output() as (output, caught_warnings):
            target = _import_target(entry)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (isolated, and reported)
        return None, [_make_import_problem(entry, error)]
    problems = _make_noise_problems(entry, output.getvalue(), caught_warnings)
    manager = make_pluggy({})
    try:
        hooks, faults = find_hooks(entry, target, manager)
    except Exception as error:  # noqa: BLE001  (any access to a foreign object may raise)
        fault = f"searching for hooks in {entry.value} fails: {describe_error(error)}"
        return None, [*problems, make_plugin_problem("import-error", entry, fault)]
    if faults:
        return None, problems + faults
    return hooks, problems


def make_pluggy(hooks: dict[PluginEntry, Hooks]) -> pluggy.PluginManager:
    """Return a pluggy manager with the specifications, and the hooks of plugins."""
    import pluggy

    from detcore.contract import hooks as specs
    from detcore.contract.hooks import PROJECT

    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specs)
    for entry in reversed(hooks):  # pluggy calls in reverse order of registration
        manager.register(hooks[entry], name=entry.name)
    return manager


def find_callers(
    manager: pluggy.PluginManager, hook: str, entries: Iterable[PluginEntry]
) -> list[tuple[PluginEntry, pluggy.HookCaller]]:
    """Return one caller per plugin, so that a failing plugin does not affect other plugins."""
    by_name = {entry.name: entry for entry in reversed(list(entries))}
    implementations = getattr(manager.hook, hook).get_hookimpls()
    plugins = list({impl.plugin_name: impl.plugin for impl in reversed(implementations)}.items())
    return [
        (
            by_name[name],
            manager.subset_hook_caller(
                hook, [other for _, other in plugins if other is not plugin]
            ),
        )
        for name, plugin in plugins
    ]


def describe_error(error: BaseException) -> str:
    """Return an error in one line: its type, its message, and the line that raised it."""
    if isinstance(error, SyntaxError) and error.filename:
        return join_lines(
            f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
        )
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    text = join_lines(str(error))
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


def _import_target(entry: PluginEntry) -> object:
    module, _, path = entry.value.partition(":")
    target: object = importlib.import_module(module)
    for attribute in filter(None, path.split(".")):
        target = getattr(target, attribute)
    return target


@contextlib.contextmanager
def _capture_output() -> Iterator[tuple[io.StringIO, list[warnings.WarningMessage]]]:
    """Capture output and warnings during the block, because stdout may carry JSON."""
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(printed):
        yield printed, warned


def _make_noise_problems(
    entry: PluginEntry, printed: str, warned: Iterable[warnings.WarningMessage]
) -> list[PluginProblem]:
    texts = [
        f"it warns when it is imported: {warning.category.__name__}: {warning.message} "
        f"({warning.filename}, line {warning.lineno})"
        for warning in warned
    ]
    if printed:
        first = printed.strip().partition("\n")[0][:80]
        texts.insert(0, f"it prints when it is imported: {first!r}")
    return [make_plugin_problem("noisy-import", entry, text) for text in texts]


def _make_import_problem(entry: PluginEntry, error: BaseException) -> PluginProblem:
    module, _, path = entry.value.partition(":")
    fix = None
    missing = error.name or "" if isinstance(error, ModuleNotFoundError) else ""
    top = missing.partition(".")[0]
    if isinstance(error, SystemExit):
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else repr(error)
        kind, fault = "exits-on-import", f"importing {module} ends the program: {place}"
    elif top not in ("", "detcore"):  # a module of detcore is missing from this version
        if top == module.partition(".")[0]:
            fault = f"the module {missing!r} does not exist: the installation is damaged"
            kind = "missing-module"
            fix = install_command("--force-reinstall", "--no-deps", *entry.source)
        else:
            fault = f"importing {module} needs the module {missing!r}, which is not installed"
            kind = "missing-dependency"
            if not _lacks_requirement(entry.distribution):  # otherwise, pip installs it
                fault += f", and {entry.distribution} does not require it"
                fix = install_command(top)
    elif path and isinstance(error, AttributeError) and module in sys.modules:
        names = [name for name in dir(sys.modules[module]) if not name.startswith("_")]
        fault = f"module {module} has no object {path!r}{_suggest_name(path, names)}"
        kind = "missing-module"
    else:
        kind, fault = "import-error", f"importing {module} fails: {describe_error(error)}"
    return make_plugin_problem(kind, entry, fault, fix=fix)


def _lacks_requirement(distribution: str) -> bool:
    """Whether a requirement of a distribution is not installed."""
    from importlib.metadata import PackageNotFoundError, requires, version

    from packaging.requirements import InvalidRequirement, Requirement

    try:
        for line in requires(distribution) or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                version(requirement.name)
    except (InvalidRequirement, PackageNotFoundError):
        return True
    return False


def _suggest_name(name: str, known: Iterable[str]) -> str:
    similar = closest_match(name, known)
    return f"; did you mean {similar!r}?" if similar else ""


class Hooks:
    """The hook implementations of one plugin, as attributes of an object for pluggy.

    The plugin's module or object is not passed to pluggy. Pluggy hashes it, compares it and reads
    all of its attributes, and each of these may raise in a plugin.
    """

    def __init__(self, functions: dict[str, Callable[..., object]]) -> None:
        self.__dict__.update(functions)

    @property
    def functions(self) -> dict[str, Callable[..., object]]:
        """The implementations by their names in the plugin."""
        return dict(self.__dict__)


def find_hooks(
    entry: PluginEntry, target: object, manager: pluggy.PluginManager
) -> tuple[Hooks, list[PluginProblem]]:
    """Return the hook implementations in a plugin's module or object, and all faults.

    The manager has the specifications. The implementations are registered with it.
    """
    functions: dict[str, Callable[..., object]] = {}
    faults: list[tuple[str, str]] = []
    spec_names = {name for name in vars(manager.hook) if not name.startswith("_")}
    for name in dir(target):
        if isinstance(inspect.getattr_static(target, name, None), property):
            continue  # pluggy before 1.7 would execute it
        options = manager.parse_hookimpl_opts(target, name)
        if options is None:
            if name in spec_names and _is_own_function(target, name):
                text = f"{name} is never called, because it is not marked with @detcore.hookimpl "
                faults.append(
                    ("unmarked-hook", text + f"({describe_definition(getattr(target, name))})")
                )
            continue
        hook, function = options["specname"] or name, getattr(target, name)
        fault = _check_hook(hook, function, options, spec_names, manager)
        if fault is not None:
            faults.append((fault[0], f"{fault[1]} ({describe_definition(function)})"))
        elif hook in spec_names:
            functions[name] = function
    if not functions and not faults:
        text = f"{entry.value} implements no hook: no function is marked with detcore.hookimpl"
        faults.append(("no-hooks", text))
    return Hooks(functions), [make_plugin_problem(kind, entry, text) for kind, text in faults]


def _check_hook(
    name: str,
    function: Callable[..., object],
    options: pluggy.HookimplOpts,
    spec_names: set[str],
    manager: pluggy.PluginManager,
) -> tuple[str, str] | None:
    """Compare an implementation with the specification of the same name."""
    import pluggy

    from detcore.contract import hooks as specs

    if name not in spec_names:
        text = f"unknown hook {name!r}{_suggest_name(name, spec_names)}"
        return None if options["optionalhook"] else ("unknown-hook", text)
    if options["wrapper"] or options["hookwrapper"]:
        return "hook-wrapper", f"{name} is a wrapper, which detcore does not call"
    holder = Hooks({name: function})
    if manager.parse_hookimpl_opts(holder, name) is None:
        text = "loses its mark: put @detcore.hookimpl below @staticmethod"
        return "unmarked-hook", f"{name} {text}"
    try:
        manager.register(holder)
    except pluggy.PluginValidationError:
        spec_parameters = inspect.signature(getattr(specs, name)).parameters
        unknown_names = [
            repr(arg)
            for arg in inspect.signature(function).parameters
            if arg not in spec_parameters
        ]
        return (
            "wrong-arguments",
            f"{name} takes {', '.join(unknown_names)}, which it is not given; its arguments are "
            f"({', '.join(spec_parameters)})",
        )
    return None


def _is_own_function(target: object, name: str) -> bool:
    function = inspect.getattr_static(target, name, None)
    module = target.__name__ if isinstance(target, ModuleType) else type(target).__module__
    return inspect.isfunction(function) and function.__module__ == module


def describe_definition(function: Callable[..., object]) -> str:
    """Return the file and line of a function, for messages."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else repr(function)


@dataclasses.dataclass(frozen=True, slots=True)
class Kind:
    """One register hook, and its valid results.

    Attributes:
        noun: Name of the registered values, for messages.
        hook: Name of the hook.
        type: The class of the values; None for click commands.
        targets: Fields of the form ``"module:attribute"``, which may be empty if they are optional.
    """

    noun: str
    hook: str
    type: type | None
    targets: tuple[str, ...] = ()

    def find_faults(self, item: Any) -> Iterator[str]:
        """Yield the faults of a value of this type."""
        if not _is_text(item.name, _NAME):
            yield f"name is {item.name!r}; use lower-case letters, digits, '-' and '_'"
        fields: Any = getattr(self.type, "__dataclass_fields__", {})
        for field in fields.values():
            value = getattr(item, field.name)
            fault = f"{field.name} is {_shorten_repr(value)}, not a "
            if field.name in self.targets:
                is_left_out = value in (None, "") and field.default in (None, "")
                if not is_left_out and not _is_text(value, _TARGET):
                    yield f"{fault}string like 'module:attribute'"
            elif field.type == "tuple[str, ...]":
                pattern = _SCHEME if field.name == "schemes" else None
                if not isinstance(value, tuple) or not all(_is_text(t, pattern) for t in value):
                    yield f"{fault}tuple of {'URL schemes' if pattern else 'names'}"
            elif isinstance(field.default, str) and not isinstance(value, str):
                yield f"{fault}string"


class Registration(NamedTuple):
    """A value that a plugin registered."""

    entry: PluginEntry
    item: Any  # a Framework, StorageType, LauncherType, ... or click.Command; see `KINDS`


_FRAMEWORK = (
    "trial_class", "context_class", "controller", "prepare_worker", "load_checkpoint", "native_init"
)  # fmt: skip
KINDS = {
    kind.noun: kind
    for kind in (
        Kind("framework", "detcore_register_framework", Framework, _FRAMEWORK),
        Kind(
            "storage type", "detcore_register_storage", types.StorageType, ("settings", "backend")
        ),
        Kind("launcher", "detcore_register_launcher", types.LauncherType, ("launcher", "settings")),
        Kind("rendezvous", "detcore_register_rendezvous", types.RendezvousType, ("service",)),
        Kind("searcher", "detcore_register_searcher", types.SearcherType, ("method", "settings")),
        Kind("command", "detcore_register_commands", None),
        Kind("router", "detcore_register_routes", types.RoutesType, ("make_router",)),
    )
}


def collect_registrations(
    kind: Kind,
    callers: Iterable[tuple[PluginEntry, pluggy.HookCaller]],
    reserved: Mapping[str, str],
) -> tuple[dict[str, Registration], list[PluginProblem]]:
    """Call a register hook of some plugins; return the valid values by name, and the problems.

    Only the distributions in `reserved` may register these names.
    """
    registrations: list[Registration] = []
    problems: list[PluginProblem] = []
    for entry, hook in callers:
        try:
            returned = hook()
        except (Exception, SystemExit) as error:  # noqa: BLE001  (isolated, and reported)
            fault = f"{kind.hook} fails: {describe_error(error)}"
            problems.append(make_plugin_problem("hook-failed", entry, fault))
            continue
        place = describe_definition(hook.get_hookimpls()[0].function)
        for value in returned:
            for item in value if isinstance(value, (list, tuple)) else [value]:
                name, faults = _check_item(kind, item)
                problems += [
                    make_plugin_problem(name, entry, f"{kind.hook} returned {fault} ({place})")
                    for fault in faults
                ]
                if not faults:
                    registrations.append(Registration(entry, item))
    accepted, conflicts = _resolve_conflicts(kind, registrations, reserved)
    return accepted, problems + conflicts


def _check_item(kind: Kind, item: object) -> tuple[str, list[str]]:
    """Return the kind of problem that a value has, and its faults."""
    expected_type = kind.type
    if expected_type is None:
        import click

        expected_type = click.Command
    if not isinstance(item, expected_type):
        return "wrong-type", [f"{_shorten_repr(item)}, which is not a {expected_type.__name__}"]
    return "bad-value", [f"a {kind.noun} whose {fault}" for fault in kind.find_faults(item)]


def _is_text(value: object, pattern: re.Pattern[str] | None) -> bool:
    return isinstance(value, str) and (pattern is None or pattern.fullmatch(value) is not None)


def _shorten_repr(value: object) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


def _resolve_conflicts(
    kind: Kind, registrations: Sequence[Registration], reserved: Mapping[str, str]
) -> tuple[dict[str, Registration], list[PluginProblem]]:
    """Drop names that two plugins registered, except built-in names."""
    claims: dict[tuple[str, str], list[Registration]] = {}
    for registration in registrations:
        schemes = getattr(registration.item, "schemes", ())
        for key in [(kind.noun, registration.item.name), *(("URL scheme", s) for s in schemes)]:
            claims.setdefault(key, []).append(registration)
    problems = []
    rejected_ids: set[int] = set()
    for (noun, name), claimants in claims.items():
        not_allowed = [
            claimant for claimant in claimants if is_reserved(name, claimant.entry, reserved)
        ]
        rejected_ids.update(map(id, not_allowed))
        problems += [
            make_command_clash(claimant.entry, name, reserved[name]) for claimant in not_allowed
        ]
        claimants = [claimant for claimant in claimants if claimant not in not_allowed]
        if len(claimants) > 1:
            rejected = [claimant for claimant in claimants if not claimant.entry.is_built_in]
            rejected_ids.update(map(id, rejected))
            problems.append(_make_conflict(noun, name, claimants, rejected))
    accepted = [
        registration for registration in registrations if id(registration) not in rejected_ids
    ]
    return {registration.item.name: registration for registration in accepted}, problems


def list_targets(noun: str, item: object) -> list[tuple[str, str]]:
    """Return the fields of a registered value that name an object, with the object's name."""
    fields = KINDS[noun].targets
    return [(field, value) for field in fields if (value := getattr(item, field))]


def _make_conflict(
    noun: str, name: str, claimants: list[Registration], rejected: list[Registration]
) -> PluginProblem:
    entries = list({claimant.entry.name: claimant.entry for claimant in claimants}.values())
    first, last = rejected[0].entry, rejected[-1].entry
    if len(entries) == 1:
        fault = f"it registers the {noun} {name!r} twice"
        return make_plugin_problem("duplicate-registration", last, fault)
    is_built_in_used = len(rejected) < len(claimants)
    consequence = f"the built-in {noun} is used" if is_built_in_used else "none is used"
    return PluginProblem(
        kind="duplicate-registration",
        plugin=last.name,
        owner=" and ".join(entry.label for entry in entries),
        message=f"both register the {noun} {name!r}; {consequence}",
        fix=switch_off_command(last.name),
        alternative=None if first is last else switch_off_command(first.name),
    )
