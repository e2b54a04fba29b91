"""Read the description of a trial in a checkpoint, and recreate the trial."""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

from detcore.contract.errors import CheckpointNotFoundError, InvalidCheckpointError
from detcore.contract.trial import TRIAL_FILE
from detcore.trial.entrypoint import import_trial_class

if TYPE_CHECKING:
    from detcore.contract.trial import TrialContext


def find_checkpoint_directory(path: str | os.PathLike[str]) -> Path:
    """Return the directory of a downloaded checkpoint.

    Raises:
        CheckpointNotFoundError: If the directory does not exist.
    """
    folder = Path(path)
    if not folder.is_dir():
        raise CheckpointNotFoundError(
            f"the directory {folder} does not exist.\n"
            "Pass the directory of a downloaded checkpoint, as Checkpoint.download() returns it:\n"
            "  detcore checkpoint download UUID"
        )
    return folder


def read_trial_file(folder: Path, framework: str) -> dict[str, Any]:
    """Return the description of a trial, ``trial.json``, in a framework's checkpoint.

    Args:
        folder: The checkpoint's directory.
        framework: Registered name of the framework that must have written it.

    Returns:
        ``trial_class`` (import path), ``framework``, ``hparams`` and ``config``, among others. The
        configuration holds the trial's values as ``hyperparameters``.

    Raises:
        InvalidCheckpointError: If the file is missing or damaged, or was written by another
            framework.
    """
    path = folder / TRIAL_FILE
    try:
        record: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        written_by, trial_class = record["framework"], record["trial_class"]
        record["config"] = {**record["config"], "hyperparameters": dict(record["hparams"])}
    except FileNotFoundError as error:
        raise InvalidCheckpointError(
            f"{folder} has no {TRIAL_FILE}, so it is not a checkpoint of a trial.\n"
            "Load the weights of other programs with the framework's own functions."
        ) from error
    except (ValueError, TypeError, KeyError) as error:
        raise InvalidCheckpointError(
            f"{path} is damaged: {error!r}.\n"
            "Download the checkpoint again:  detcore checkpoint download UUID"
        ) from error
    if written_by != framework:
        raise InvalidCheckpointError(
            f"{folder} is a checkpoint of the framework {written_by!r} (trial class "
            f"{trial_class}), not of {framework!r}.\n"
            f"Load it with the plugin of {written_by!r}."
        )
    return record


@contextlib.contextmanager
def create_trial_from_code(
    folder: Path,
    trial_class: str,
    context: TrialContext,
    *,
    instead: str,
    aliases: Mapping[str, ModuleType] | None = None,
    arguments: Mapping[str, Any] | None = None,
) -> Iterator[Any]:
    """Create a trial from the code in its checkpoint, which is importable inside the block.

    **This runs code from the checkpoint.**

    Args:
        folder: The checkpoint's directory.
        trial_class: Import path of the class.
        context: Passed to the class.
        instead: Advice for a checkpoint without code, at the end of the message.
        aliases: Modules to make available under other names inside the block.
        arguments: Further arguments of the class, by name.

    Raises:
        InvalidCheckpointError: If the checkpoint has no code.
        InvalidExperimentError: If the code does not contain the class.
    """
    code = folder / "code"
    if not code.is_dir():
        raise InvalidCheckpointError(
            f"{folder} has no directory 'code' from which to import {trial_class!r}.\n{instead}"
        )
    with import_from_directory(code, aliases):
        yield import_trial_class(trial_class, code)(context, **(arguments or {}))


@contextlib.contextmanager
def import_from_directory(
    code: Path, aliases: Mapping[str, ModuleType] | None = None
) -> Iterator[None]:
    """Make imports search a directory first, and undo all changes afterwards.

    Inside the block, the directory is also the working directory, as in a worker. After the block,
    modules of the same names are restored, and the directory's modules are removed from
    ``sys.modules``. Objects created from them stay usable. No bytecode is written to the directory.
    Not thread-safe: ``sys.path``, ``sys.modules`` and the working directory belong to the process.

    Args:
        code: The directory.
        aliases: Modules to make available under other names inside the block.
    """
    code = code.resolve()
    aliases = aliases or {}
    module_names = _list_importable_names(code) | {name.partition(".")[0] for name in aliases}
    modules, path, previous_dir = dict(sys.modules), list(sys.path), Path.cwd()
    writes_bytecode = sys.dont_write_bytecode
    hidden_modules = {
        name: module for name, module in modules.items() if name.partition(".")[0] in module_names
    }
    for name in hidden_modules:
        del sys.modules[name]
    sys.modules.update(aliases)
    sys.path.insert(0, str(code))
    sys.dont_write_bytecode = True
    importlib.invalidate_caches()
    os.chdir(code)
    try:
        yield
    finally:
        os.chdir(previous_dir)
        sys.dont_write_bytecode = writes_bytecode
        sys.path[:] = path
        for name in [name for name in sys.modules if name.partition(".")[0] in module_names]:
            del sys.modules[name]
        sys.modules.update(hidden_modules)
        for entry in [entry for entry in sys.path_importer_cache if _is_inside(entry, code)]:
            del sys.path_importer_cache[entry]


def _list_importable_names(code: Path) -> set[str]:
    """Return the top-level names that can be imported from a directory."""
    names = {path.stem for path in code.glob("*.py")}
    names |= {path.name for path in code.iterdir() if path.is_dir() and any(path.rglob("*.py"))}
    # A directory cannot replace modules of the standard library.
    return names - set(sys.stdlib_module_names)


def _is_inside(entry: str, code: Path) -> bool:
    return entry == str(code) or entry.startswith(str(code) + os.sep)
