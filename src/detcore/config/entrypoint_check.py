"""Check that the code of an entrypoint exists, by reading it without running it."""

from __future__ import annotations

import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from detcore.config.problems import OwnProblem, nearest, problem_at
from detcore.contract.values import TrialSettings

_PYTHON = re.compile(r"(.*/)?python[\d.]*")
# Characters with which a shell does more than start one program.
_SHELL = frozenset("|&;<>()$`\n*?[]{}~=")


def entrypoint_mistakes(entrypoint: object, folder: Path) -> Iterator[OwnProblem]:
    """Yield the module or script of an entrypoint that a worker would not find.

    Args:
        entrypoint: As in the experiment file.
        folder: Folder of the code.
    """
    match, words = TrialSettings.match_trial_class(entrypoint), _words(entrypoint)
    target = match["module"] if match else _find_target(words)
    if target is None:
        if len(words) == 1 and not shutil.which(words[0]):  # it may be a word of the shell
            yield from _missing_colon(words[0], folder)
    elif _is_path(target):
        if not os.path.isfile(folder / target):
            names = [path.name for path in folder.glob("*") if path.suffix in (".py", ".sh")]
            hint = "paths in an entrypoint are relative to the folder of the code"
            message = f": there is no {target} in {folder}"
            yield _wrong(message, nearest(target, names), help=[hint])
    elif not _find_module(target, folder) and not _is_installed(target.partition(".")[0]):
        near = nearest(target, [path.stem for path in folder.glob("*.py")])
        suffix = f":{match['name']}" if match else ""
        message = f": there is no module '{target}' in {folder}, and none is installed"
        yield _wrong(message, near and near + suffix)


def find_entry_script(entrypoint: object, folder: Path) -> Path | None:
    """Return the script in the folder that an entrypoint starts; None where that is not certain."""
    words = _words(entrypoint)
    if "--" in words and not _PYTHON.fullmatch(words[0]):  # behind a launcher's own options
        words = words[words.index("--") + 1 :]
    target = _find_target(words)
    if target is None:
        return None
    if not _is_path(target):
        return _find_module(target, folder)
    is_script = target.endswith(".py") and os.path.isfile(folder / target)
    return folder / target if is_script else None


def _find_target(words: Sequence[str]) -> str | None:
    """Return the script or the module that a command starts; None where that is not certain."""
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


def _wrong(text: str, meant: str | None = None, *, help: Iterable[str] = ()) -> OwnProblem:
    return problem_at(("entrypoint",), f"entrypoint{text}", suggestion=meant, help=help)


def _missing_colon(word: str, folder: Path) -> Iterator[OwnProblem]:
    module, _, name = word.rpartition(".")
    text = f" '{word}' is no command; a trial class is written with a colon"
    if _find_module(word, folder) is not None:
        yield _wrong(text, f"{word}:NameOfTheClass")
    elif module and _find_module(module, folder) is not None:
        yield _wrong(text, f"{module}:{name}")


def _words(entrypoint: object) -> Sequence[str]:
    """Return a command's words; empty if a shell would interpret them."""
    if isinstance(entrypoint, list):
        return [word for word in entrypoint if isinstance(word, str)]
    if not isinstance(entrypoint, str) or _SHELL & set(entrypoint):
        return []
    try:
        return shlex.split(entrypoint)
    except ValueError:
        return []


def _find_module(module: str, folder: Path) -> Path | None:
    """Return the file that Python runs for a module, or imports."""
    path = folder / module.replace(".", "/")
    files = (path / "__main__.py", Path(f"{path}.py"), path / "__init__.py")
    return next((file for file in files if os.path.isfile(file)), None)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
