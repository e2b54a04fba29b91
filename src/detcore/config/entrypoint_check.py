"""Check that the code of an entrypoint exists, without running it."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from detcore.config.problems import OwnProblem, find_closest, make_problem_at
from detcore.contract.values import TrialSettings

_PYTHON = re.compile(r"(.*/)?python[\d.]*")
# Characters that a shell interprets.
_SHELL = frozenset("|&;<>()$`\n*?[]{}~=")


def find_entrypoint_mistakes(entrypoint: object, folder: Path) -> Iterator[OwnProblem]:
    """Yield a problem if a worker would not find the module or script of an entrypoint.

    Args:
        entrypoint: As in the experiment file.
        folder: Directory of the code.
    """
    match, words = TrialSettings.match_trial_class(entrypoint), _split_words(entrypoint)
    target = match["module"] if match else _find_target(words)
    if target is None:
        if len(words) == 1 and not shutil.which(words[0]):  # may be a shell built-in
            yield from _missing_colon(words[0], folder)
    elif _is_path(target):
        if not os.path.isfile(folder / target):
            names = [path.name for path in folder.glob("*") if path.suffix in (".py", ".sh")]
            hint = "paths in an entrypoint are relative to the code directory"
            message = f": {target} not found in {folder}"
            yield _make_entrypoint_problem(message, find_closest(target, names), help=[hint])
    elif not _find_module(target, folder) and not _is_installed(target.partition(".")[0]):
        near = find_closest(target, [path.stem for path in folder.glob("*.py")])
        suffix = f":{match['name']}" if match else ""
        message = f": module '{target}' is neither in {folder} nor installed"
        yield _make_entrypoint_problem(message, near and near + suffix)


def find_entry_script(entrypoint: object, folder: Path) -> Path | None:
    """Return the script in the directory that an entrypoint starts, or None if it is unknown."""
    words = _split_words(entrypoint)
    if "--" in words and not _PYTHON.fullmatch(words[0]):  # after the options of a launcher
        words = words[words.index("--") + 1 :]
    target = _find_target(words)
    if target is None:
        return None
    if not _is_path(target):
        return _find_module(target, folder)
    is_script = target.endswith(".py") and os.path.isfile(folder / target)
    return folder / target if is_script else None


def _find_target(words: Sequence[str]) -> str | None:
    """Return the script or the module that a command starts, or None if it is unknown."""
    if not words:
        return None
    program, *arguments = words
    if not _PYTHON.fullmatch(program):
        return program if _is_path(program) and not shutil.which(program) else None
    first = next((word for word in arguments if word in ("-m", "-c") or word[:1] != "-"), "")
    if first == "-m":
        return "".join(arguments[arguments.index("-m") + 1 :][:1]) or None
    return first if first.endswith(".py") else None


def _is_path(target: str) -> bool:
    return "/" in target or target.endswith((".py", ".sh"))


def _make_entrypoint_problem(
    text: str, meant: str | None = None, *, help: Iterable[str] = ()
) -> OwnProblem:
    return make_problem_at(("entrypoint",), f"entrypoint{text}", suggestion=meant, help=help)


def _missing_colon(word: str, folder: Path) -> Iterator[OwnProblem]:
    module, _, name = word.rpartition(".")
    text = f" '{word}' is not a command; write a trial class with a colon"
    if _find_module(word, folder) is not None:
        yield _make_entrypoint_problem(text, f"{word}:NameOfTheClass")
    elif module and _find_module(module, folder) is not None:
        yield _make_entrypoint_problem(text, f"{module}:{name}")


def _split_words(entrypoint: object) -> Sequence[str]:
    """Return the words of a command, or an empty list if it needs a shell."""
    if isinstance(entrypoint, list):
        return [word for word in entrypoint if isinstance(word, str)]
    if not isinstance(entrypoint, str) or _SHELL & set(entrypoint):
        return []
    try:
        return shlex.split(entrypoint)
    except ValueError:
        return []


def _find_module(module: str, folder: Path) -> Path | None:
    """Return the file that Python runs or imports for a module."""
    path = folder / module.replace(".", "/")
    files = (path / "__main__.py", Path(f"{path}.py"), path / "__init__.py")
    return next((file for file in files if os.path.isfile(file)), None)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
