"""Where a trial class comes from, and how another process gets at it."""

from __future__ import annotations

import dataclasses
import sys
import sysconfig
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

from detcore.contract.errors import InvalidExperimentError
from detcore.optional_distributions import import_distribution


@dataclasses.dataclass(frozen=True, slots=True)
class ClassLocation:
    """How a worker imports a trial class.

    Attributes:
        entrypoint: As in an experiment file.
        written: The file with cells of this session that was written for it, or None.
    """

    entrypoint: str
    written: Path | None = None


def find_class(trial_class: type, folder: Path) -> ClassLocation:
    """Find out how a process that runs in a folder imports a class.

    A class of an IPython or Jupyter session is written to a file in the folder, together with what
    it needs (see `detcore_report.module_from_cells`).

    Args:
        trial_class: The class, of a module, a script or an interactive session.
        folder: Where the trials run; the first place that they import from.

    Raises:
        InvalidExperimentError: If it cannot be imported from there.
        MissingDistributionError: If it is in a session's cells and detcore-report is not installed.
    """
    name = trial_class.__qualname__
    if not name.isidentifier():
        raise InvalidExperimentError(
            f"the trial class {name} is defined inside of a function or another class.\n"
            "Each trial runs in a separate process, which imports the class by its name.\n"
            "Define it at the top level of the module."
        )
    module = sys.modules.get(trial_class.__module__)
    if module is None:
        raise InvalidExperimentError(f"the module {trial_class.__module__} of {name} is not there")
    if module.__name__ != "__main__":
        return ClassLocation(_imported(module, name, folder))
    session = _session()
    if session is not None and session.user_module is module and _is_in_cells(trial_class, module):
        return _written(session.user_ns["In"], trial_class, vars(module), folder)
    file = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)
    if spec is not None and file is not None and Path(file).name != "__main__.py":
        return ClassLocation(f"{spec.name}:{name}")  # python -m package.module
    if file is None or not Path(file).is_file():
        raise InvalidExperimentError(
            f"the source of {name} is not known: it was typed at Python's prompt, or given with "
            "-c.\n"
            "Each trial runs in a process of its own, which needs the source.\n"
            "Put the class into a file, or use IPython or Jupyter, whose cells are kept."
        )
    return ClassLocation(_in_file(Path(file).absolute(), name, folder))


def find_main_script(trial_class: type) -> Path | None:
    """Return the script that is run, if a class is defined in it; None for cells and modules."""
    module = sys.modules.get(trial_class.__module__)
    if module is None or module.__name__ != "__main__":
        return None
    session = _session()
    if session is not None and session.user_module is module:
        return None
    file = getattr(module, "__file__", None)
    if getattr(module, "__spec__", None) is not None or file is None or not Path(file).is_file():
        return None  # python -m package.module, python -c
    return Path(file).resolve()


def is_interactive() -> bool:
    """Whether a person types here: IPython, Jupyter, or Python's prompt."""
    return _session() is not None or hasattr(sys, "ps1")


def _session() -> Any:
    """Return the IPython session of this process, or None."""
    package = sys.modules.get("IPython")
    get: Callable[[], Any] | None = getattr(package, "get_ipython", None)
    return get() if get is not None else None


def _is_in_cells(trial_class: type, module: ModuleType) -> bool:
    """Whether a class of ``__main__`` was defined in a cell rather than in a script (``%run``)."""
    functions = [value for value in vars(trial_class).values() if hasattr(value, "__code__")]
    files = {function.__code__.co_filename for function in functions}
    return getattr(module, "__file__", None) not in files or not files


def _written(
    cells: Sequence[str], trial_class: type, namespace: Mapping[str, Any], folder: Path
) -> ClassLocation:
    name = trial_class.__qualname__
    report = import_distribution("detcore_report", needed_by=f"training {name} from a notebook")
    made = report.module_from_cells(cells, name, namespace=namespace)
    path = folder / f"{made.name}.py"
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != made.text:
            path.write_text(made.text, encoding="utf-8")
    except OSError as error:
        raise InvalidExperimentError(
            f"the cells that {name} needs cannot be written to {path}: {error.strerror}.\n"
            "The trials import them from there.\n"
            "Pass context_dir=... with a folder that can be written to."
        ) from error
    return ClassLocation(f"{made.name}:{name}", written=path)


def _imported(module: ModuleType, name: str, folder: Path) -> str:
    """Return the entrypoint of a class in a module that was imported."""
    file = getattr(module, "__file__", None)
    plain = f"{module.__name__}:{name}"
    if file is None:
        return plain
    path = Path(file).absolute()
    depth = module.__name__.count(".") + (path.name == "__init__.py")
    root = path.parents[depth]
    if root == folder or root in _installed_roots() or root != _script_folder():
        return plain
    if "." in module.__name__ or path.name == "__init__.py":
        raise _outside(path, name, folder, root)
    return _in_file(path, name, folder)


def _in_file(path: Path, name: str, folder: Path) -> str:
    """Return the entrypoint of a class in a file that is run, or beside one."""
    if not path.is_relative_to(folder):
        raise _outside(path, name, folder, path.parent)
    relative = path.relative_to(folder)
    if len(relative.parts) == 1 and path.stem.isidentifier() and path.suffix == ".py":
        return f"{path.stem}:{name}"
    text = relative.as_posix()
    if path.suffix != ".py" or any(character in text for character in " \t\n:;&|<>$`\"'*?#~!()"):
        raise InvalidExperimentError(
            f"the trial class {name} is defined in {text!r}, a name that trials cannot import.\n"
            "Use letters, digits, '_', '-' and '.', and the ending .py."
        )
    return f"{text}:{name}"


def _outside(path: Path, name: str, folder: Path, root: Path) -> InvalidExperimentError:
    return InvalidExperimentError(
        f"the trial class {name} is defined in {path}, but the trials run in {folder}.\n"
        "They import the class from there, and their checkpoints get a copy of the code there.\n"
        f"Pass context_dir={str(root)!r}, or run the script from there."
    )


def _script_folder() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).absolute().parent if file is not None else None


def _installed_roots() -> set[Path]:
    return {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
