"""Find out how another process can import a trial class."""

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
    """Location from which a worker imports a trial class.

    Attributes:
        entrypoint: As in an experiment file.
        written: File with the cells of a notebook that was written for the class, or None.
    """

    entrypoint: str
    written: Path | None = None


def find_class(trial_class: type, folder: Path) -> ClassLocation:
    """Return the location from which a process that runs in a directory imports a class.

    A class of an IPython or Jupyter session is written to a file in the directory, together with
    the code that it uses (see `detcore_report.module_from_cells`).

    Args:
        trial_class: A class in a module, a script or an interactive session.
        folder: Working directory of the trials, from which they import first.

    Raises:
        InvalidExperimentError: If the class cannot be imported from there.
        MissingDistributionError: If it is in notebook cells and detcore-report is not installed.
    """
    name = trial_class.__qualname__
    if not name.isidentifier():
        raise InvalidExperimentError(
            f"the trial class {name} is defined inside a function or another class.\n"
            "Each trial runs in a separate process, which imports the class by its name.\n"
            "Define the class at the top level of the module."
        )
    module = sys.modules.get(trial_class.__module__)
    if module is None:
        raise InvalidExperimentError(
            f"the module {trial_class.__module__} of the trial class {name} is not imported"
        )
    if module.__name__ != "__main__":
        return ClassLocation(_make_module_entrypoint(module, name, folder))
    session = _get_ipython()
    if session is not None and session.user_module is module and _is_in_cells(trial_class, module):
        return _write_cells(session.user_ns["In"], trial_class, vars(module), folder)
    file = getattr(module, "__file__", None)
    spec = getattr(module, "__spec__", None)
    if spec is not None and file is not None and Path(file).name != "__main__.py":
        return ClassLocation(f"{spec.name}:{name}")  # python -m package.module
    if file is None or not Path(file).is_file():
        raise InvalidExperimentError(
            f"the source of {name} is unknown, because it was typed at the Python prompt or passed "
            "with -c.\n"
            "Each trial runs in a separate process, which needs the source.\n"
            "Put the class into a file, or use IPython or Jupyter."
        )
    return ClassLocation(_make_file_entrypoint(Path(file).absolute(), name, folder))


def find_main_script(trial_class: type) -> Path | None:
    """Return the running script if it defines the class. Return None for cells and modules."""
    module = sys.modules.get(trial_class.__module__)
    if module is None or module.__name__ != "__main__":
        return None
    session = _get_ipython()
    if session is not None and session.user_module is module:
        return None
    file = getattr(module, "__file__", None)
    if getattr(module, "__spec__", None) is not None or file is None or not Path(file).is_file():
        return None  # python -m package.module, python -c
    return Path(file).resolve()


def is_interactive() -> bool:
    """Whether this is an interactive session: IPython, Jupyter, or the Python prompt."""
    return _get_ipython() is not None or hasattr(sys, "ps1")


def _get_ipython() -> Any:
    """Return the IPython session of this process, or None."""
    package = sys.modules.get("IPython")
    get: Callable[[], Any] | None = getattr(package, "get_ipython", None)
    return get() if get is not None else None


def _is_in_cells(trial_class: type, module: ModuleType) -> bool:
    """Whether a class of ``__main__`` was defined in a cell rather than in a script (``%run``)."""
    functions = [value for value in vars(trial_class).values() if hasattr(value, "__code__")]
    files = {function.__code__.co_filename for function in functions}
    return getattr(module, "__file__", None) not in files or not files


def _write_cells(
    cells: Sequence[str], trial_class: type, namespace: Mapping[str, Any], folder: Path
) -> ClassLocation:
    name = trial_class.__qualname__
    report = import_distribution("detcore_report", needed_by=f"training {name} from a notebook")
    notebook_module = report.module_from_cells(cells, name, namespace=namespace)
    path = folder / f"{notebook_module.name}.py"
    try:
        if not path.exists() or path.read_text(encoding="utf-8") != notebook_module.text:
            path.write_text(notebook_module.text, encoding="utf-8")
    except OSError as error:
        raise InvalidExperimentError(
            f"the cells that {name} uses cannot be written to {path}: {error.strerror}.\n"
            "The trials import them from there.\n"
            "Pass context_dir=... with a writable directory."
        ) from error
    return ClassLocation(f"{notebook_module.name}:{name}", written=path)


def _make_module_entrypoint(module: ModuleType, name: str, folder: Path) -> str:
    """Return the entrypoint of a class in an imported module."""
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
        raise _make_outside_error(path, name, folder, root)
    return _make_file_entrypoint(path, name, folder)


def _make_file_entrypoint(path: Path, name: str, folder: Path) -> str:
    """Return the entrypoint of a class in the script, or in a file next to it."""
    if not path.is_relative_to(folder):
        raise _make_outside_error(path, name, folder, path.parent)
    relative = path.relative_to(folder)
    if len(relative.parts) == 1 and path.stem.isidentifier() and path.suffix == ".py":
        return f"{path.stem}:{name}"
    text = relative.as_posix()
    if path.suffix != ".py" or any(character in text for character in " \t\n:;&|<>$`\"'*?#~!()"):
        raise InvalidExperimentError(
            f"the trial class {name} is defined in {text!r}, which trials cannot import.\n"
            "Use a file name with letters, digits, '_', '-' and '.', and the suffix .py."
        )
    return f"{text}:{name}"


def _make_outside_error(path: Path, name: str, folder: Path, root: Path) -> InvalidExperimentError:
    return InvalidExperimentError(
        f"the trial class {name} is defined in {path}, but the trials run in {folder}.\n"
        "They import the class from there, and copy the code there to their checkpoints.\n"
        f"Pass context_dir={str(root)!r}, or run the script from {root}."
    )


def _script_folder() -> Path | None:
    file = getattr(sys.modules.get("__main__"), "__file__", None)
    return Path(file).absolute().parent if file is not None else None


def _installed_roots() -> set[Path]:
    return {Path(sysconfig.get_path(name)) for name in ("stdlib", "purelib", "platlib")}
