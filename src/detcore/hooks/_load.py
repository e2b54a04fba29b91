"""Import one plugin and compare its hooks with the specifications, isolating all failures."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import inspect
import io
import sys
import traceback
import warnings
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import TYPE_CHECKING

from detcore.contract.errors import near_name
from detcore.hooks._problem import (
    PluginProblem,
    install_command,
    one_line,
    plugin_problem,
)
from detcore.hooks._requires import guess_requirement

if TYPE_CHECKING:
    import pluggy

    from detcore.hooks._entry import PluginEntry

__all__ = ["Hooks", "defined_at", "describe_error", "load_plugin"]


@dataclasses.dataclass
class _Noise:
    printed: io.StringIO
    warned: list[warnings.WarningMessage]


def load_plugin(
    entry: PluginEntry, manager: pluggy.PluginManager
) -> tuple[Hooks | None, list[PluginProblem]]:
    """Import a plugin and check its hooks.

    Args:
        entry: The plugin.
        manager: Has the specifications; nothing is registered with it.

    Returns:
        The hooks, or None if the plugin cannot be used; and its faults.
    """
    try:
        with _listening() as noise:
            target = _import(entry)
    except (Exception, SystemExit) as error:  # noqa: BLE001  (isolated, and reported)
        return None, [_import_problem(entry, error)]
    problems = _noise_problems(entry, noise)
    try:
        hooks, faults = find_hooks(entry, target, manager)
    except Exception as error:  # noqa: BLE001  (any access to a foreign object may raise)
        fault = f"looking for hooks in {entry.value} fails: {describe_error(error)}"
        return None, [*problems, plugin_problem("import-error", entry, fault)]
    if faults:
        return None, problems + faults
    return hooks, problems + find_deprecated(entry, hooks, manager)


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
def _listening() -> Iterator[_Noise]:
    """Capture output and warnings in the meantime; stdout may carry a program's JSON."""
    printed = io.StringIO()
    with warnings.catch_warnings(record=True) as warned, contextlib.redirect_stdout(printed):
        yield _Noise(printed, warned)


def _noise_problems(entry: PluginEntry, noise: _Noise) -> list[PluginProblem]:
    problems = []
    if noise.printed.getvalue():
        first = noise.printed.getvalue().strip().partition("\n")[0][:80]
        problems.append(
            plugin_problem("noisy-import", entry, f"it prints when it is imported: {first!r}")
        )
    for warning in noise.warned:
        problems.append(
            plugin_problem(
                "noisy-import",
                entry,
                f"it warns when it is imported: {warning.category.__name__}: {warning.message} "
                f"({warning.filename}, line {warning.lineno})",
            )
        )
    return problems


def _import_problem(entry: PluginEntry, error: BaseException) -> PluginProblem:
    module, _, path = entry.value.partition(":")
    if isinstance(error, SystemExit):
        return plugin_problem(
            "exits-on-import", entry, f"importing {module} ends the program: {_place(error)}"
        )
    if isinstance(error, ModuleNotFoundError) and error.name and _is_foreign(error.name):
        return _missing_module(entry, module, error.name)
    if path and isinstance(error, AttributeError) and module in sys.modules:
        names = [name for name in dir(sys.modules[module]) if not name.startswith("_")]
        near = near_name(path, names)
        hint = f"; did you mean {near!r}?" if near else ""
        return plugin_problem(
            "missing-module", entry, f"module {module} has no object {path!r}{hint}"
        )
    return plugin_problem(
        "import-error", entry, f"importing {module} fails: {describe_error(error)}"
    )


def _missing_module(entry: PluginEntry, module: str, missing: str) -> PluginProblem:
    top = missing.partition(".")[0]
    if top == module.partition(".")[0]:
        return plugin_problem(
            "missing-module",
            entry,
            f"there is no module {missing!r}: the installation is damaged",
            mend=install_command("--force-reinstall", "--no-deps", *entry.source),
        )
    return plugin_problem(
        "missing-dependency",
        entry,
        f"importing {module} needs the module {missing!r}, which is not installed",
        mend=install_command(guess_requirement(top, entry.distribution)),
    )


def _is_foreign(module: str) -> bool:
    """Whether a module is not part of detcore; our own, if missing, never existed or are gone."""
    return module.partition(".")[0] != "detcore"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else repr(error)


# -- hooks -----------------------------------------------------------------------------------------


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
    """Return the implementations in a plugin's module or object, and every fault in them."""
    functions: dict[str, Callable[..., object]] = {}
    faults: list[PluginProblem] = []
    known = {name for name in vars(manager.hook) if not name.startswith("_")}
    trial = _new_manager()
    for name in dir(target):
        if isinstance(inspect.getattr_static(target, name, None), property):
            continue  # pluggy before 1.7 would execute it
        options = manager.parse_hookimpl_opts(target, name)
        if options is None:
            if name in known and _is_own_function(target, name):
                faults.append(_unmarked(entry, target, name))
            continue
        function = getattr(target, name)
        fault = _check_hook(entry, options.get("specname") or name, function, options, known, trial)
        if fault is not None:
            faults.append(fault)
        elif (options.get("specname") or name) in known:
            functions[name] = function
    if not functions and not faults:
        faults.append(
            plugin_problem(
                "no-hooks",
                entry,
                f"{entry.value} implements no hook: it has no function marked detcore.hookimpl",
            )
        )
    return Hooks(functions), faults


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
    entry: PluginEntry,
    name: str,
    function: Callable[..., object],
    options: object,
    known: set[str],
    trial: pluggy.PluginManager,
) -> PluginProblem | None:
    """Compare one implementation with the specification of that name."""
    assert isinstance(options, dict)  # narrowing: pluggy's TypedDict
    if name not in known:
        if options.get("optionalhook"):
            return None
        near = near_name(name, known)
        hint = f"; did you mean {near!r}?" if near else ""
        return plugin_problem(
            "unknown-hook", entry, f"there is no hook {name!r}{hint} ({defined_at(function)})"
        )
    if options.get("wrapper") or options.get("hookwrapper"):
        return plugin_problem(
            "hook-wrapper", entry, f"{name} is a wrapper, which detcore does not call "
            f"({defined_at(function)})"
        )  # fmt: skip
    return _check_signature(entry, name, function, trial)


def _new_manager() -> pluggy.PluginManager:
    import pluggy

    from detcore.contract import hooks as specs
    from detcore.contract.hooks import PROJECT

    manager = pluggy.PluginManager(PROJECT)
    manager.add_hookspecs(specs)
    return manager


def _check_signature(
    entry: PluginEntry, name: str, function: Callable[..., object], trial: pluggy.PluginManager
) -> PluginProblem | None:
    """Let pluggy compare the arguments of one implementation with the specification.

    Args:
        entry: The plugin.
        name: The hook.
        function: The implementation.
        trial: A manager that is used for nothing else than this plugin's implementations.
    """
    import pluggy

    from detcore.contract import hooks as specs

    holder = Hooks({name: function})
    if trial.parse_hookimpl_opts(holder, name) is None:
        return plugin_problem(
            "unmarked-hook",
            entry,
            f"{name} is marked in a way that gets lost: put @detcore.hookimpl below @staticmethod "
            f"({defined_at(function)})",
        )
    try:
        trial.register(holder, name=f"{name} of {entry.name}")
    except pluggy.PluginValidationError:
        wanted = inspect.signature(getattr(specs, name))
        extra = [
            arg for arg in inspect.signature(function).parameters if arg not in wanted.parameters
        ]
        return plugin_problem(
            "wrong-arguments",
            entry,
            f"{name} takes {', '.join(map(repr, extra))}, which it is not given; its arguments "
            f"are ({', '.join(wanted.parameters)}) ({defined_at(function)})",
        )
    return None


def _is_own_function(target: object, name: str) -> bool:
    function = inspect.getattr_static(target, name, None)
    module = target.__name__ if isinstance(target, ModuleType) else type(target).__module__
    return inspect.isfunction(function) and function.__module__ == module


def _unmarked(entry: PluginEntry, target: object, name: str) -> PluginProblem:
    return plugin_problem(
        "unmarked-hook",
        entry,
        f"{name} is never called, for it is not marked with @detcore.hookimpl "
        f"({defined_at(getattr(target, name))})",
    )


def defined_at(function: Callable[..., object]) -> str:
    """Return the file and line of a function, for messages."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else repr(function)
