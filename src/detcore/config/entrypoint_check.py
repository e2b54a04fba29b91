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
    """Yield the modules and scripts of an entrypoint that a worker would not find.

    Args:
        entrypoint: As in the experiment file.
        folder: Folder of the code.
    """
    if match := TrialSettings.match_trial_class(entrypoint):
        if match["module"].endswith(".py"):
            yield from _script_mistakes(match["module"], folder)
        else:
            yield from _module_mistakes(match["module"], folder, suffix=f":{match['name']}")
    elif words := _words(entrypoint):
        yield from _command_mistakes(words, folder)


def script_of(entrypoint: object, folder: Path) -> Path | None:
    """Return the script in the folder that an entrypoint starts; None where that is not certain."""
    words = list(_words(entrypoint))
    if "--" in words and not _PYTHON.fullmatch(words[0]):  # behind a launcher's own options
        words = words[words.index("--") + 1 :]
    if len(words) < 2 or not _PYTHON.fullmatch(words[0]):
        return None
    if words[1] == "-m" and len(words) > 2:
        main = _find_module(f"{words[2]}.__main__", folder)
        return main or _find_module(words[2], folder)
    first = next((word for word in words[1:] if not word.startswith("-") or word == "-c"), "")
    is_script = first.endswith(".py") and _is_there(first, folder)
    return folder / first if is_script else None


def _wrong(text: str, meant: str | None = None, *, help: Iterable[str] = ()) -> OwnProblem:
    return problem_at(("entrypoint",), f"entrypoint{text}", suggestion=meant, help=help)


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


def _command_mistakes(words: Sequence[str], folder: Path) -> Iterator[OwnProblem]:
    program, *arguments = words
    if _is_there(program, folder) or shutil.which(program):
        if not _PYTHON.fullmatch(program):
            return
        if arguments[:1] == ["-m"] and len(arguments) > 1:
            yield from _module_mistakes(arguments[1], folder)
            return
        script = next((word for word in arguments if not word.startswith("-")), "")
        if script.endswith(".py") and not {"-m", "-c"} & {*arguments}:
            yield from _script_mistakes(script, folder)
    elif "/" in program or program.endswith((".py", ".sh")):
        yield from _script_mistakes(program, folder)
    elif not arguments:  # it may be a word of the shell
        module, _, name = program.rpartition(".")
        text = f" '{program}' is no command; a trial class is written with a colon"
        if _find_module(program, folder) is not None:
            yield _wrong(text, f"{program}:NameOfTheClass")
        elif module and _find_module(module, folder) is not None:
            yield _wrong(text, f"{module}:{name}")


def _script_mistakes(script: str, folder: Path) -> Iterator[OwnProblem]:
    if not _is_there(script, folder):
        names = [path.name for path in folder.glob("*") if path.suffix in (".py", ".sh")]
        hint = "paths in an entrypoint are relative to the folder of the code"
        yield _wrong(f": there is no {script} in {folder}", nearest(script, names), help=[hint])


def _module_mistakes(module: str, folder: Path, suffix: str = "") -> Iterator[OwnProblem]:
    is_there = _find_module(module, folder) or _find_module(f"{module}.__main__", folder)
    if not is_there and not _is_installed(module.partition(".")[0]):
        near = nearest(module, [path.stem for path in folder.glob("*.py")])
        text = f": there is no module '{module}' in {folder}, and none is installed"
        yield _wrong(text, near and near + suffix)


def _is_there(path: str, folder: Path) -> bool:
    return os.path.isfile(folder / path)


def _find_module(module: str, folder: Path) -> Path | None:
    path = folder / module.replace(".", "/")
    return next(
        (file for file in (Path(f"{path}.py"), path / "__init__.py") if os.path.isfile(file)), None
    )


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
