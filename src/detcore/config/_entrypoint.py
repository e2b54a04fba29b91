"""Check that the code of an entrypoint exists, by reading it without running it."""

from __future__ import annotations

import ast
import importlib.util
import os
import re
import shlex
import shutil
from collections.abc import Collection, Iterable, Iterator, Sequence
from pathlib import Path

from detcore.config._problem import OwnProblem, nearest, problem_at

_TRIAL_CLASS = re.compile(r"(?P<module>[\w.]+|[\w./-]+\.py):(?P<name>[A-Za-z_]\w*)")
_DOTTED = re.compile(r"(?P<module>[A-Za-z_][\w.]*)\.(?P<name>[A-Za-z_]\w*)")
_PYTHON = re.compile(r"(.*/)?python[\d.]*")
_STARTERS = {".py": _PYTHON, ".sh": re.compile(r"(.*/)?(ba|da|z)?sh")}
# Characters with which a shell does more than start one program.
_SHELL = frozenset("|&;<>()$`\n*?[]{}~=")
_BATCH_SIZE = "global_batch_size"


def entrypoint_mistakes(
    entrypoint: object,
    folder: Path,
    *,
    hyperparameters: Collection[str],
    sized_trials: Collection[str],
) -> Iterator[OwnProblem]:
    """Yield the parts that a worker would miss: a module, a class, a script, a batch size.

    Args:
        entrypoint: As in the experiment file.
        folder: Folder of the code.
        hyperparameters: Names of the hyperparameters.
        sized_trials: Names of trial classes that need ``hyperparameters.global_batch_size``.
    """
    if isinstance(entrypoint, str) and (found := _TRIAL_CLASS.fullmatch(entrypoint.strip())):
        yield from _class_mistakes(
            found["module"], found["name"], folder, _BATCH_SIZE in hyperparameters, sized_trials
        )
    elif words := _words(entrypoint):
        yield from _command_mistakes(words, folder)


def names_class(entrypoint: object) -> bool:
    """Whether an entrypoint is a trial class, not a command."""
    return isinstance(entrypoint, str) and _TRIAL_CLASS.fullmatch(entrypoint.strip()) is not None


def script_of(entrypoint: object, folder: Path) -> Path | None:
    """Return the script in the folder that an entrypoint starts; None where that is not certain."""
    words = list(_words(entrypoint))
    if "--" in words and not _PYTHON.fullmatch(words[0]):  # behind a launcher's own options
        words = words[words.index("--") + 1 :]
    if len(words) < 2 or not _PYTHON.fullmatch(words[0]):
        return None
    if words[1] == "-m" and len(words) > 2:
        main = _file_of(f"{words[2]}.__main__", folder)
        return main or _file_of(words[2], folder)
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
    program = words[0]
    if _is_there(program, folder):
        path = folder / program
        if not (os.access(path, os.X_OK) if "/" in program else shutil.which(program)):
            starter = "python3 " if program.endswith(".py") else "sh " if "/" in program else "./"
            why = "a name without '/' is looked for in PATH, not in the folder of the code"
            if "/" in program:
                why = "the file is not executable"
            text = f": {program} cannot be started as a command"
            yield _wrong(text, starter + shlex.join(words), help=[why])
            return
    if _is_there(program, folder) or shutil.which(program):
        if words[1:2] == ["-m"] and len(words) > 2 and _PYTHON.fullmatch(program):
            yield from _module_mistakes(words[2], folder)
            return
        script = next((word for word in words[1:] if not word.startswith("-")), "")
        starts = _STARTERS.get(Path(script).suffix)
        is_script = starts and starts.fullmatch(program) and not {"-m", "-c"} & {*words}
        if not is_script or _is_there(script, folder):
            return
        program = script
    elif len(words) == 1 and program.isidentifier() and _file_of(program, folder) is not None:
        text = f" '{program}' is no command; a trial class is written with a colon"
        yield _wrong(text, f"{program}:NameOfTheClass")
        return
    elif (found := _DOTTED.fullmatch(program)) and len(words) == 1:
        if _file_of(found["module"], folder) is not None:
            text = f" '{program}' is no command; a trial class is written with a colon"
            yield _wrong(text, f"{found['module']}:{found['name']}")
            return
    elif "/" not in program and not program.endswith((".py", ".sh")):
        return  # may be a word of the shell
    names = [path.name for path in folder.glob("*") if path.suffix in (".py", ".sh")]
    hint = "paths in a command are relative to the folder of the code"
    yield _wrong(f": there is no {program} in {folder}", nearest(program, names), help=[hint])


def _module_mistakes(module: str, folder: Path) -> Iterator[OwnProblem]:
    is_there = _file_of(module, folder) or _file_of(f"{module}.__main__", folder)
    if not is_there and not _is_installed(module.partition(".")[0]):
        near = nearest(module, [path.stem for path in folder.glob("*.py")])
        yield _wrong(f": there is no module '{module}' in {folder}, and none is installed", near)


def _class_mistakes(
    module: str, name: str, folder: Path, has_size: bool, sized_trials: Collection[str]
) -> Iterator[OwnProblem]:
    file = _file_of(module, folder)
    if file is None:
        if not module.endswith(".py") and _is_installed(module.partition(".")[0]):
            return
        modules = [path.stem for path in folder.glob("*.py")]
        near = None if module.endswith(".py") else nearest(module, modules)
        hint = f"modules there: {', '.join(sorted(modules)) or 'none'}"
        meant = f"{near}:{name}" if near else None
        yield _wrong(f": there is no module '{module}' in {folder}", meant, help=[hint])
        return
    try:
        defined = dict(_definitions(ast.parse(file.read_bytes(), str(file)).body))
    except OSError as error:
        yield _wrong(f": {file} cannot be read: {error.strerror}")
        return
    except SyntaxError as error:
        yield _wrong(f": {file.name}, line {error.lineno} is not valid Python: {error.msg}")
        return
    except (ValueError, RecursionError, MemoryError) as error:
        yield _wrong(f": {file.name} is not valid Python: {error}")
        return
    if "*" in defined or "__getattr__" in defined:
        return
    if name not in defined:
        classes = [key for key, node in defined.items() if isinstance(node, ast.ClassDef)]
        near = nearest(name, classes) or (classes[0] if len(classes) == 1 else None)
        hint = f"its classes: {', '.join(classes) or 'none'}"
        meant = f"{module}:{near}" if near else None
        yield _wrong(f": {file.name} has no class '{name}'", meant, help=[hint])
    elif isinstance(node := defined[name], ast.Import | ast.FunctionDef):
        yield _wrong(f": '{name}' in {file.name}, line {node.lineno} is not a class")
    elif not has_size and sized_trials:
        yield from _size_mistakes(name, defined, sized_trials)


def _size_mistakes(
    name: str, defined: dict[str, ast.AST], sized_trials: Collection[str]
) -> Iterator[OwnProblem]:
    seen: set[str] = set()
    while isinstance(node := defined.get(name), ast.ClassDef) and name not in seen:
        seen.add(name)
        bases = [ast.unparse(base).rpartition(".")[2] for base in node.bases]
        sized = next((base for base in bases if base in sized_trials), None)
        if sized is not None:
            yield problem_at(
                ("hyperparameters",),
                f"a {sized} needs hyperparameters.{_BATCH_SIZE}",
                f"no '{_BATCH_SIZE}' here",
                at="key",
                help=["the records of one training step, over all workers"],
                suggestion=_BATCH_SIZE,
            )
            return
        name = next((base for base in bases if base in defined), "")


def _definitions(body: Sequence[ast.stmt]) -> Iterator[tuple[str, ast.AST]]:
    """Yield the names that a module defines, including those below ``if``, ``try`` and ``with``."""
    for node in body:
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name, node
        elif isinstance(node, ast.Import | ast.ImportFrom):
            yield from (
                ((alias.asname or alias.name).partition(".")[0], node) for alias in node.names
            )
        elif isinstance(node, ast.Assign | ast.AnnAssign | ast.AugAssign):
            for part in ast.walk(node):
                if isinstance(part, ast.Name) and isinstance(part.ctx, ast.Store):
                    yield part.id, node
        else:
            for blocks in ("body", "orelse", "finalbody"):
                yield from _definitions(getattr(node, blocks, []))
            for handler in getattr(node, "handlers", []):
                yield from _definitions(handler.body)


def _is_there(path: str, folder: Path) -> bool:
    return os.path.isfile(folder / path)


def _file_of(module: str, folder: Path) -> Path | None:
    path = folder / (module if module.endswith(".py") else module.replace(".", "/") + ".py")
    package = folder / module.replace(".", "/") / "__init__.py"
    return next((found for found in (path, package) if os.path.isfile(found)), None)


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except (ImportError, ValueError):
        return False
