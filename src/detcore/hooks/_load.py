"""Import one plugin and compare its hooks with the specifications, isolating all failures."""

from __future__ import annotations

import contextlib
import importlib
import inspect
import io
import sys
import traceback
import warnings
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from detcore.contract.errors import near_name
from detcore.hooks._entry import (
    PluginEntry,
    PluginProblem,
    install_command,
    one_line,
    plugin_problem,
)
from detcore.hooks._requires import guess_requirement

if TYPE_CHECKING:
    import pluggy

__all__ = [
    "Hooks", "callers_of", "defined_at", "describe_error", "load_plugin", "make_pluggy",
]  # fmt: skip


def load_plugin(entry: PluginEntry) -> tuple[Hooks | None, list[PluginProblem]]:
    """Import a plugin and check its hooks.

    Returns:
        The hooks, or None if the plugin cannot be used; and its faults.
    """
    try:
        with _listening() as (printed, warned):
            target = _import(entry)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (isolated, and reported)
        return None, [_import_problem(entry, error)]
    problems = _noise_problems(entry, printed.getvalue(), warned)
    manager = make_pluggy({})
    try:
        hooks, faults = find_hooks(entry, target, manager)
    except Exception as error:  # noqa: BLE001  (any access to a foreign object may raise)
        fault = f"looking for hooks in {entry.value} fails: {describe_error(error)}"
        return None, [*problems, plugin_problem("import-error", entry, fault)]
    if faults:
        return None, problems + faults
    return hooks, problems + find_deprecated(entry, hooks, manager)


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


def callers_of(
    manager: pluggy.PluginManager, hook: str, entries: Iterable[PluginEntry]
) -> list[tuple[PluginEntry, pluggy.HookCaller]]:
    """Return one caller per plugin, so that a failing plugin does not stop the others."""
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
    """Return an error in one line: its type, its text, and the line that raised it."""
    if isinstance(error, SyntaxError) and error.filename:
        return one_line(
            f"{type(error).__name__}: {error.msg} ({error.filename}, line {error.lineno})"
        )
    frames = traceback.extract_tb(error.__traceback__)
    place = f" ({frames[-1].filename}, line {frames[-1].lineno})" if frames else ""
    text = one_line(str(error))
    return f"{type(error).__name__}{': ' if text else ''}{text}{place}"


def _import(entry: PluginEntry) -> object:
    module, _, path = entry.value.partition(":")
    target: object = importlib.import_module(module)
    for attribute in filter(None, path.split(".")):
        target = getattr(target, attribute)
    return target


@contextlib.contextmanager
def _listening() -> Iterator[tuple[io.StringIO, list[warnings.WarningMessage]]]:
    """Capture output and warnings in the meantime; stdout may carry a program's JSON."""
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(printed):
        yield printed, warned


def _noise_problems(
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
    return [plugin_problem("noisy-import", entry, text) for text in texts]


def _import_problem(entry: PluginEntry, error: BaseException) -> PluginProblem:
    module, _, path = entry.value.partition(":")
    mend = None
    if isinstance(error, SystemExit):
        frames = traceback.extract_tb(error.__traceback__)
        place = f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else repr(error)
        kind, fault = "exits-on-import", f"importing {module} ends the program: {place}"
    elif isinstance(error, ModuleNotFoundError) and error.name and _is_foreign(error.name):
        top = error.name.partition(".")[0]
        if top == module.partition(".")[0]:
            fault = f"there is no module {error.name!r}: the installation is damaged"
            kind = "missing-module"
            mend = install_command("--force-reinstall", "--no-deps", *entry.source)
        else:
            fault = f"importing {module} needs the module {error.name!r}, which is not installed"
            kind = "missing-dependency"
            mend = install_command(guess_requirement(top, entry.distribution))
    elif path and isinstance(error, AttributeError) and module in sys.modules:
        names = [name for name in dir(sys.modules[module]) if not name.startswith("_")]
        fault = f"module {module} has no object {path!r}{_did_you_mean(path, names)}"
        kind = "missing-module"
    else:
        kind, fault = "import-error", f"importing {module} fails: {describe_error(error)}"
    return plugin_problem(kind, entry, fault, mend=mend)


def _did_you_mean(name: str, known: Iterable[str]) -> str:
    near = near_name(name, known)
    return f"; did you mean {near!r}?" if near else ""


def _is_foreign(module: str) -> bool:
    """Whether a module is not part of detcore; our own, if missing, never existed or are gone."""
    return module.partition(".")[0] != "detcore"


class Hooks:
    """The hook implementations of one plugin, as attributes of an object, as pluggy needs them.

    The plugin's own module or object is not passed to pluggy, which hashes it, compares it and
    reads all of its attributes; in a plugin, each of these may raise.
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
    """Return the implementations in a plugin's module or object, and every fault in them.

    Args:
        entry: The plugin.
        target: Its module or object.
        manager: Has the specifications; the implementations are registered with it.
    """
    functions: dict[str, Callable[..., object]] = {}
    faults: list[tuple[str, str]] = []
    known = {name for name in vars(manager.hook) if not name.startswith("_")}
    for name in dir(target):
        if isinstance(inspect.getattr_static(target, name, None), property):
            continue  # pluggy before 1.7 would execute it
        options = manager.parse_hookimpl_opts(target, name)
        if options is None:
            if name in known and _is_own_function(target, name):
                text = f"{name} is never called, for it is not marked with @detcore.hookimpl "
                faults.append(("unmarked-hook", text + f"({defined_at(getattr(target, name))})"))
            continue
        hook, function = options["specname"] or name, getattr(target, name)
        fault = _check_hook(hook, function, options, known, manager)
        if fault is not None:
            faults.append((fault[0], f"{fault[1]} ({defined_at(function)})"))
        elif hook in known:
            functions[name] = function
    if not functions and not faults:
        text = f"{entry.value} implements no hook: it has no function marked detcore.hookimpl"
        faults.append(("no-hooks", text))
    return Hooks(functions), [plugin_problem(kind, entry, text) for kind, text in faults]


def find_deprecated(
    entry: PluginEntry, hooks: Hooks, manager: pluggy.PluginManager
) -> list[PluginProblem]:
    """Return the deprecated features that a plugin's hooks use; they work until removed."""
    from detcore.contract import hooks as specs
    from detcore.deprecation import deprecations_of_hook

    found = []
    for name, function in hooks.functions.items():
        options = manager.parse_hookimpl_opts(hooks, name)
        hook = (options["specname"] if options else None) or name
        taken = {"", *inspect.signature(function).parameters}
        for argument, notice in deprecations_of_hook(getattr(specs, hook)).items():
            if argument in taken:
                message = f"{notice.message} ({defined_at(function)})"
                found.append(plugin_problem("deprecated-hook", entry, message))
    return found


def _check_hook(
    name: str,
    function: Callable[..., object],
    options: pluggy.HookimplOpts,
    known: set[str],
    manager: pluggy.PluginManager,
) -> tuple[str, str] | None:
    """Compare one implementation with the specification of that name."""
    import pluggy

    from detcore.contract import hooks as specs

    if name not in known:
        text = f"there is no hook {name!r}{_did_you_mean(name, known)}"
        return None if options["optionalhook"] else ("unknown-hook", text)
    if options["wrapper"] or options["hookwrapper"]:
        return "hook-wrapper", f"{name} is a wrapper, which detcore does not call"
    holder = Hooks({name: function})
    if manager.parse_hookimpl_opts(holder, name) is None:
        text = "is marked in a way that gets lost: put @detcore.hookimpl below @staticmethod"
        return "unmarked-hook", f"{name} {text}"
    try:
        manager.register(holder)
    except pluggy.PluginValidationError:
        wanted = inspect.signature(getattr(specs, name)).parameters
        extra = [repr(arg) for arg in inspect.signature(function).parameters if arg not in wanted]
        return (
            "wrong-arguments",
            f"{name} takes {', '.join(extra)}, which it is not given; its arguments are "
            f"({', '.join(wanted)})",
        )
    return None


def _is_own_function(target: object, name: str) -> bool:
    function = inspect.getattr_static(target, name, None)
    module = target.__name__ if isinstance(target, ModuleType) else type(target).__module__
    return inspect.isfunction(function) and function.__module__ == module


def defined_at(function: Callable[..., object]) -> str:
    """Return the file and line of a function, for messages."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else repr(function)
