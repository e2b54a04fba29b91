"""Import one plugin and check its hooks, isolating all of its failures."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import io
import sys
import traceback
import warnings
from collections.abc import Iterator
from typing import TYPE_CHECKING

from detcore.errors import near_name
from detcore.hooks._check import Hooks, find_deprecated, find_hooks
from detcore.hooks._problem import (
    PluginProblem,
    author_problem,
    install_command,
    one_line,
)
from detcore.hooks._requires import guess_requirement

if TYPE_CHECKING:
    import pluggy

    from detcore.hooks._entry import PluginEntry

__all__ = ["describe_error", "load_plugin"]


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
        return None, [*problems, author_problem("import-error", entry, fault)]
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
            author_problem("noisy-import", entry, f"it prints when it is imported: {first!r}")
        )
    for warning in noise.warned:
        problems.append(
            author_problem(
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
        return author_problem(
            "exits-on-import", entry, f"importing {module} ends the program: {_place(error)}"
        )
    if isinstance(error, ModuleNotFoundError) and error.name and _is_foreign(error.name):
        return _missing_module(entry, module, error.name)
    if path and isinstance(error, AttributeError) and module in sys.modules:
        names = [name for name in dir(sys.modules[module]) if not name.startswith("_")]
        near = near_name(path, names)
        hint = f"; did you mean {near!r}?" if near else ""
        return author_problem(
            "missing-module", entry, f"module {module} has no object {path!r}{hint}"
        )
    return author_problem(
        "import-error", entry, f"importing {module} fails: {describe_error(error)}"
    )


def _missing_module(entry: PluginEntry, module: str, missing: str) -> PluginProblem:
    top = missing.partition(".")[0]
    if top == module.partition(".")[0]:
        return PluginProblem(
            kind="missing-module",
            plugin=entry.name,
            owner=entry.label,
            message=f"there is no module {missing!r}: the installation is damaged",
            mend=install_command("--force-reinstall", "--no-deps", *entry.source),
        )
    return PluginProblem(
        kind="missing-dependency",
        plugin=entry.name,
        owner=entry.label,
        message=f"importing {module} needs the module {missing!r}, which is not installed",
        mend=install_command(guess_requirement(top, entry.distribution)),
    )


def _is_foreign(module: str) -> bool:
    """Whether a module is not part of detcore; our own, if missing, never existed or are gone."""
    return module.partition(".")[0] != "detcore"


def _place(error: BaseException) -> str:
    frames = traceback.extract_tb(error.__traceback__)
    return f"{frames[-1].filename}, line {frames[-1].lineno}" if frames else repr(error)
