"""Find a plugin's hook implementations, and compare them with the specifications."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from types import ModuleType
from typing import TYPE_CHECKING

from detcore.errors import near_name
from detcore.hooks._problem import PluginProblem, author_problem

if TYPE_CHECKING:
    import pluggy

    from detcore.hooks._entry import PluginEntry

__all__ = ["Hooks", "defined_at", "find_deprecated", "find_hooks"]


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
            author_problem(
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
    from detcore.deprecation import deprecations_of_hook
    from detcore.hooks import specs

    found = []
    for name, function in hooks.functions.items():
        options = manager.parse_hookimpl_opts(hooks, name)
        hook = (options["specname"] if options else None) or name
        taken = {"", *inspect.signature(function).parameters}
        for argument, notice in deprecations_of_hook(getattr(specs, hook)).items():
            if argument in taken:
                message = f"{notice.message} ({defined_at(function)})"
                found.append(author_problem("deprecated-hook", entry, message))
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
        return author_problem(
            "unknown-hook", entry, f"there is no hook {name!r}{hint} ({defined_at(function)})"
        )
    if options.get("wrapper") or options.get("hookwrapper"):
        return author_problem(
            "hook-wrapper", entry, f"{name} is a wrapper, which detcore does not call "
            f"({defined_at(function)})"
        )  # fmt: skip
    return _check_signature(entry, name, function, trial)


def _new_manager() -> pluggy.PluginManager:
    import pluggy

    from detcore.hooks import specs
    from detcore.hooks._markers import PROJECT

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

    from detcore.hooks import specs

    holder = Hooks({name: function})
    if trial.parse_hookimpl_opts(holder, name) is None:
        return author_problem(
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
        return author_problem(
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
    return author_problem(
        "unmarked-hook",
        entry,
        f"{name} is never called, for it is not marked with @detcore.hookimpl "
        f"({defined_at(getattr(target, name))})",
    )


def defined_at(function: Callable[..., object]) -> str:
    """Return the file and line of a function, for messages."""
    code = getattr(inspect.unwrap(function), "__code__", None)
    return f"{code.co_filename}, line {code.co_firstlineno}" if code else repr(function)
